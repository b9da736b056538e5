"""Compare a plan's results with the module's: the last step of an export."""

from taper_frontend.verify.inside import InspectedPlan
from taper_frontend.verify.reference import Reference
from taper_frontend.verify.trials import VerificationError, verify_plan

__all__ = ["InspectedPlan", "Reference", "VerificationError", "verify_plan"]
