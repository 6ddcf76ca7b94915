"""From how a run ended and what its ranks wrote, to what was probably wrong and what to do.

The table (`known/`) holds what is known by its words, `endings` what an exit code means by itself; everything else is
honestly unknown, with the place to look at.
"""

from trainwiz.diagnose.blame import blamed
from trainwiz.diagnose.diagnosis import Diagnosis, diagnose, of_log
from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.log_text import Line, read
from trainwiz.diagnose.signature import Signature

__all__ = ["SIGNATURES", "Diagnosis", "Line", "Signature", "blamed", "diagnose", "of_log", "read"]
