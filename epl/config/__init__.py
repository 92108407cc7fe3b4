"""Configuration: dotted keys, their values, and the rules that hold between them."""

from epl.config.config import Config, as_variables, read_yaml

__all__ = ["Config", "as_variables", "read_yaml"]
