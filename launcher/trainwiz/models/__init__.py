"""Transformers as their config.json describes them: sizes and exact numbers of parameters, without loading anything."""

from trainwiz.models.assumed import of_parameters
from trainwiz.models.known import known, parameters_in_name
from trainwiz.models.reader import MOST_PARAMETERS, of_config
from trainwiz.models.transformer import Block, Transformer

__all__ = ["MOST_PARAMETERS", "Block", "Transformer", "known", "of_config", "of_parameters", "parameters_in_name"]
