"""The training engines as data: versions, known keys, defaults and variables, each with its source.

A new release of an engine is taken up here, and by the tests that compare this data with the installed version.
"""
