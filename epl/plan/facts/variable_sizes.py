"""How large variables are, and runs of things that are about equally large."""

from epl.graph import types


def num_elements(variable):
    """Of a variable, 0 when its shape is not known."""
    if variable.shape is None or any(d < 0 for d in variable.shape):
        return 0
    return elements_of(variable.shape)


def elements_of(shape):
    """Of a tensor of a shape."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def size_bytes(variable):
    """Bytes of a variable, 0 when its shape is not known."""
    return num_elements(variable) * types.DTYPE_BYTES.get(types.base(variable.dtype), 4)


def cut_evenly(sized, splits):
    """Cuts a list of (item, bytes) into at most `splits` runs of about equal size."""
    total = sum(size for _, size in sized)
    splits = min(splits, len(sized))
    runs, run, filled = [], [], 0
    for item, size in sized:
        run.append((item, size))
        filled += size
        if len(runs) < splits - 1 and filled >= total * (len(runs) + 1) // splits:
            runs.append(run)
            run = []
    return runs + [run] if run else runs


def known_bytes(model, tensor):
    """Bytes of a tensor of a Program; None where its shape is not known, be it of a batch of any size."""
    spec = model.spec_of(tensor)
    if spec is None or spec.shape is None or any(dim < 0 for dim in spec.shape):
        return None
    count = types.DTYPE_BYTES.get(types.base(spec.dtype), 4)
    for dim in spec.shape:
        count *= dim
    return count
