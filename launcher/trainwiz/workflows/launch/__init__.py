"""Running a project or a script: preflight, start, supervision, restarts, records."""
