"""The wizard: asks the table of questions on a terminal and lets the person review the plan."""

from trainwiz.wizard.interview import REVIEW, Interview
from trainwiz.wizard.review import review, rows, said_source
from trainwiz.wizard.terminal import Action, Asked, Reply
from trainwiz.wizard.trail import Trail

__all__ = ["REVIEW", "Action", "Asked", "Interview", "Reply", "Trail", "review", "rows", "said_source"]
