"""Jobs of schedulers: submitting, looking at and stopping them."""
