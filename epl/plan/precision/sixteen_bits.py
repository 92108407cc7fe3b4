"""Which 16 bits a program computes in, and why (amp.dtype="auto")."""

from dataclasses import dataclass
from typing import FrozenSet

from epl.config import composes
from epl.config.keys import keys
from epl.errors import UnsupportedError
from epl.plan.facts.analysis import analyse
from epl.plan.precision.loss_scale import FLOAT16, plan_loss_scale
from epl.plan.precision.precision import O2, NoKernel, Precision, plan_precision
from epl.program.program import SixteenBits

AUTO, BFLOAT16 = "auto", "bfloat16"


@dataclass(frozen=True)
class Casting:
    """What is cast.

    Attributes:
      chosen: the SixteenBits.
      precision: the Precision.
      lasting: a weight is cast once, for the forward and the backward pass.
      in_control_flow: nodes inside a loop or a branch of control flow v1.
      is_told: casts are written to the log, as a table.
    """

    chosen: SixteenBits
    precision: Precision
    lasting: bool
    in_control_flow: FrozenSet[str]
    is_told: bool


def plan_casts(program, target):
    """The Casting of a program, where amp.level asks for one; else None; raises as `choose_sixteen_bits`."""
    amp = target.config.amp
    if not amp.level:
        return None
    chosen, precision = choose_sixteen_bits(
        program, target.config, target.cluster.device_type, target.op_def, target.has_kernel
    )
    inside = analyse(program).in_control_flow if precision.computed else frozenset()
    return Casting(chosen, precision, amp.level == O2, inside, amp.debug_log)


def choose_sixteen_bits(program, config, device_type, op_def, has_kernel):
    """(SixteenBits, Precision) of a program.

    Args:
      program: an epl.program.program.Program with one copy of the model.
      config: the epl.Config.
      device_type, op_def, has_kernel: as of epl.plan.precision.precision.plan_precision.

    Raises:
      PlanError, UnsupportedError: see plan_precision; of "auto", where neither of the two serves.
    """

    def precision(name):
        return plan_precision(program, config.amp, name, device_type, op_def, has_kernel)

    if config.amp.dtype != AUTO:
        return SixteenBits(config.amp.dtype), precision(config.amp.dtype)
    if composes.names_loss_scale(config.to_dict()):
        return SixteenBits(FLOAT16, "a key about the loss scale is set"), precision(FLOAT16)
    first, second, why = BFLOAT16, FLOAT16, "the device has its kernels"
    if device_type == "GPU":
        first, second, why = FLOAT16, BFLOAT16, "the device is a GPU"
    unfit = _unfit(first, program, config, precision)
    if unfit is None:
        return SixteenBits(first, why), precision(first)
    unfit_too = _unfit(second, program, config, precision)
    if unfit_too is None:
        return SixteenBits(second, unfit[0]), precision(second)
    raise UnsupportedError(
        'amp.dtype="auto" finds no 16 bits for this program. %s: %s %s: %s' % (first, unfit[1], second, unfit_too[1])
    )


def _unfit(name, program, config, precision):
    """Why one of the two does not serve, in short and as an error says it; None where it does."""
    try:
        if name == FLOAT16:
            for each in (composes.refusal(composes.FLOAT16, other) for other in (composes.WIRE, composes.DGC)):
                if each.other.in_values(config.to_dict()):
                    key, left = each.other.key, "its loss scale does not go together with %s: %s. Leave that key at %r."
                    facts = key, each.facts["why"], keys()[key].default
                    return "float16's loss scale does not go together with " + key, left % facts
            plan_loss_scale(program)
        precision(name)
    except NoKernel as error:
        return "TensorFlow has no %s kernel of %s for the %s" % (name, error.op, error.device_type), str(error)
    except UnsupportedError as error:
        return "float16 needs a loss scale, which does not fit this program", str(error)
    return None
