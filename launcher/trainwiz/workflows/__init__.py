"""What each command does: the only room that joins the edges. `cli` parses and calls one of these."""
