"""What the launcher leaves out: noise of TensorFlow, which the logs keep; and what it finds in long errors."""

import pytest

from epl.launch.errors_seen import ErrorsSeen
from epl.launch.output import TAIL_LINES, Console, Stream

pytestmark = pytest.mark.once

NOISE = b"""\
2026-11-23 06:01:46.955341: E external/local_xla/cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to
2026-11-23 06:01:46.955341: E external/local_xla/cuda_driver.cc:274] out of memory
WARNING:tensorflow:From a.py:2: dense (from tensorflow.python.layers.core) is deprecated and will be removed in a
Instructions for updating:
Use keras.layers.Dense instead.
one
WARNING:tensorflow:From a.py:2: py_func (from tensorflow.python.ops) is deprecated and will be removed in a
Instructions for updating:
tf.py_func is deprecated in TF V2. Instead, there are two
    options available in V2.
    - tf.numpy_function maintains the semantics
one
    indented
2026-11-23 06:01:46.955341: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed at a.cc:8 : CANCELLED: x
2026-11-23 06:01:46.955341: W tensorflow/core/framework/op_kernel.cc:1651] OP_REQUIRES failed at a.cc:8 : Cancelled: x
2026-11-23 06:01:46.955341: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed at a.cc:8 : INTERNAL: x
2026-11-28 03:18:32.312579: I external/local_tsl/tsl/profiler/lib/profiler_session.cc:104] Profiler session started.
2026-11-28 03:18:32.322398: W tensorflow/core/profiler/convert/xplane_to_step_stats.cc:78] GPU trace was not collected.
2026-11-28 03:14:55.597826: W external/tsl/framework/bfc_allocator.cc:485] Allocator (mklcpu) ran out of memory trying
2026-11-28 03:14:55.597826: I external/tsl/framework/bfc_allocator.cc:1046] Bin (8388608): Total Chunks: 0, Chunks
2026-11-28 03:14:55.597872: I external/tsl/framework/bfc_allocator.cc:1114] Stats:
Limit:                     25276502016
LargestFreeBlock:                    0
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to
/x/a.py:20: UserWarning: `tf.layers.dense` is deprecated and will be removed in a future version.
  logits = tf.layers.dense(x, 2)
WARNING:tensorflow:From a.py:2: dense (from tensorflow.python.layers.core) is deprecated and will be removed in a
Traceback (most recent call last):
"""


def test_noise_of_tensorflow_is_in_the_log_alone(tmp_path):
    path = tmp_path / "log"
    screen = Console(-1)
    stream = Stream(0, screen, open(str(path), "wb", buffering=0))
    stream.feed(NOISE, 0)
    stream.finish()
    kept = (b"one", b"    indented", b"Traceback", b"out of memory", b"INTERNAL", b"ran out of memory")
    shown = [line for line in NOISE.splitlines() if any(part in line for part in kept)]
    assert bytes(screen._pending).splitlines() == [b"[worker 0] " + line for line in shown]
    assert stream.last_lines() == [line.decode() for line in shown] and path.read_bytes() == NOISE
    everything = Stream(0, Console(-1), None, everything=True)
    everything.feed(NOISE, 0)
    assert everything.last_lines() == NOISE.decode().splitlines()[-TAIL_LINES:]


OUT_OF_MEMORY = b"""\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    train()
tensorflow.python.framework.errors_impl.ResourceExhaustedError: %s

OOM when allocating tensor with shape[8,8]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom


EPL expects of a training step with 4 rows in a micro-batch, as were fed:
Memory of a training step in MiB, at its peak:
  device  peak
  ------  ----
  CPU:0   9.0
CPU:0: the peak is at operation 9 of 25, 'Square'; largest: MatMul 3.0
  ... and 4 further devices, the fullest of them with 9.0
These would need less at the peak of the fullest device:
  pipeline.num_micro_batch=2: 3.0 MiB instead of 9.0 MiB
"""


@pytest.mark.parametrize("first", [b"Graph execution error:", b"OOM when allocating tensor with shape[8,8]"])
def test_what_helps_against_an_error_for_memory_is_in_the_summary(first):
    seen = ErrorsSeen()
    for line in (OUT_OF_MEMORY % first).decode().splitlines():
        seen.take(line)
    assert seen.message[-1] == "  pipeline.num_micro_batch=2: 3.0 MiB instead of 9.0 MiB"
    assert seen.place == ['File "train.py", line 9, in <module>', "train()"]
    assert not any("Hint" in line for line in seen.message)
