"""Running a small copy of a project on CPU ranks, and comparing the runs."""
