"""Strict YAML configs: what a stage does (recipe) and where it does it (machine)."""

from pipeline.config.base import StageConfig, StrictModel, load_config, load_yaml, validate
from pipeline.config.machine import Endpoint, Machine, Serving, load_machine
from pipeline.config.phases import PhasedConfig

__all__ = [
    "Endpoint",
    "Machine",
    "PhasedConfig",
    "Serving",
    "StageConfig",
    "StrictModel",
    "load_config",
    "load_machine",
    "load_yaml",
    "validate",
]
