"""Rules over configurations that trainwiz did not write. They know the files alone, so they say the same everywhere."""
