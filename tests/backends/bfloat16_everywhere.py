"""Run as a program: every configuration in bfloat16 on the cpu backend, each call beside the reference of the same
precision: `make bfloat16`."""

import sys

from tapeless.check.configurations import CONFIGURATIONS
from tapeless.check.lockstep import lockstep, pair

wrong = 0
for configuration in CONFIGURATIONS:
    if sys.argv[1:] and configuration.name not in sys.argv[1:]:
        continue
    found = [difference for difference in lockstep(*pair(configuration, "cpu", "bfloat16")) if not difference.ok]
    wrong += bool(found)
    print(f"{configuration.name}: {found[0] if found else 'every call within its roundings'}", flush=True)
raise SystemExit(wrong)
