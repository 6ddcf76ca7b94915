"""How large they are."""

SIZE = 8
