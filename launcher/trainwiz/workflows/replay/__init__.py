"""Running a recorded run once more, and comparing what it trained with what was recorded."""
