"""What holds for every test: how long one takes is no matter.

Property tests have no deadline and no complaint of slow data: a machine that does something else beside them would make
them fail. What must be quick is bounded by counting, not by a clock.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("volery", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("volery")
