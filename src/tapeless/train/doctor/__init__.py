"""What ails a run: its metrics read as a physician reads findings, one cause named first, and one advice given."""

from tapeless.train.doctor.causes import diagnose
from tapeless.train.doctor.evidence import Setup, read_setup
from tapeless.train.doctor.findings import Diagnosis, Observation

__all__ = ["Diagnosis", "Observation", "Setup", "diagnose", "read_setup"]
