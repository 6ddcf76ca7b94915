"""Reading hardware, versions and a project's surroundings. Torch is only ever imported in a child process."""
