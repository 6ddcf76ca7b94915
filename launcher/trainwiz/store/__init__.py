"""Files: plans, templates, artifacts, run folders and caches. The only room that writes to disk."""
