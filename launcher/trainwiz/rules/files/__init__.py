"""Rules on configuration files of accelerate and DeepSpeed that trainwiz did not write."""
