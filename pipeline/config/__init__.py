"""Strict YAML configs: what a stage does (recipe) and where it does it (machine)."""

from pipeline.config.base import StageConfig, StrictModel, load_config, load_yaml, validate
from pipeline.config.machine import Machine, load_machine

__all__ = ["Machine", "StageConfig", "StrictModel", "load_config", "load_machine", "load_yaml", "validate"]
