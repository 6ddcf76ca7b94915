"""Rules on files of other training tools and of what starts them.

A module with the name of one in `config/tools/` judges that tool's files; every other one judges the files of all
tools that have a word for what it asks.
"""
