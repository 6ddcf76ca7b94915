"""Judging plans and configuration files by the rules, and applying fixes."""
