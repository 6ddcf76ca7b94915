"""The probable cause of a failed run, and what to do, from how it ended and what its ranks wrote.

`known/` holds the causes that are recognized by words of a log, `endings` the meaning of exit codes. Any other failure
is called unknown, with the place to look at.
"""

from trainwiz.diagnose.blame import blamed, culprits
from trainwiz.diagnose.diagnosis import Diagnosis, diagnose, of_log
from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.log_text import Line, read
from trainwiz.diagnose.signature import Signature

__all__ = ["SIGNATURES", "Diagnosis", "Line", "Signature", "blamed", "culprits", "diagnose", "of_log", "read"]
