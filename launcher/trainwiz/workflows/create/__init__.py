"""Making a project: from answers or imported files to a plan, and from the plan to files."""
