"""Pictures as `scipy.misc` read, made and wrote them until SciPy 1.2, of Pillow's: imread, imresize, imsave."""

import importlib

import numpy as np

_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "cubic")
_CHANNELS = {3: "RGB", 4: "RGBA"}


def _pillow():
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ImportError("pictures of scipy.misc need the package Pillow: pip install Pillow.") from None


def imread(name, flatten=False, mode=None):
    """A picture's numbers.

    Args:
      name: of a file, or an open one.
      flatten: as float32 [rows, columns] of grey from 0 to 255.
      mode: Pillow's name of what the colours are converted to first, such as "RGB"; None as they are.

    Returns:
      uint8 [rows, columns] or [rows, columns, channels] mostly.
    """
    return fromimage(_pillow().open(name), flatten, mode)


def fromimage(im, flatten=False, mode=None):
    """The numbers of one of Pillow's pictures; arguments and result as of imread."""
    if mode is not None and mode != im.mode:
        im = im.convert(mode)
    elif mode is None and im.mode == "P":  # numbers of colours of a table
        im = im.convert("RGBA" if "transparency" in im.info else "RGB")
    if flatten:
        im = im.convert("F")
    elif im.mode == "1":
        im = im.convert("L")
    return np.array(im)


def bytescale(data, cmin=None, cmax=None, high=255, low=0):
    """uint8 of numbers, of which cmin (None: the smallest) becomes `low` and cmax (None: the largest) `high`."""
    if data.dtype == np.uint8:
        return data
    if not 0 <= low <= high <= 255:
        raise ValueError("0 <= low <= high <= 255 is wanted; low is %s, high %s" % (low, high))
    cmin = data.min() if cmin is None else cmin
    cmax = data.max() if cmax is None else cmax
    if cmax < cmin:
        raise ValueError("`cmax` should be larger than `cmin`.")
    scaled = (data - cmin) * (float(high - low) / ((cmax - cmin) or 1)) + low
    return (scaled.clip(low, high) + 0.5).astype(np.uint8)


def toimage(arr, high=255, low=0, cmin=None, cmax=None, pal=None, mode=None, channel_axis=None):
    """One of Pillow's pictures of numbers.

    Args:
      arr: [rows, columns], or with an axis of three (colours) or four (and opacity); mode "F" and "I" take numbers as
        they are, others bytescale's.
      high, low, cmin, cmax: as of bytescale.
      pal: must be None.
      mode: Pillow's; None by what the numbers are.
      channel_axis: which axis is that of the colours; None for the first of three, or else of four.
    """
    data = np.asarray(arr)
    if pal is not None:
        raise ValueError("`pal`, a table of colours, is not served: give an array of colours.")
    if np.iscomplexobj(data) or data.ndim not in (2, 3):
        raise ValueError("real numbers of two or three axes make a picture, not %s %s" % (data.dtype, data.shape))
    make = _pillow().fromarray
    if data.ndim == 2:
        if mode in ("F", "I"):
            return make(data.astype(np.float32 if mode == "F" else np.int32), mode)
        image = make(bytescale(data, cmin, cmax, high, low), "L")
        return image if mode in (None, "L") else image.convert(mode)
    if channel_axis is None:
        fitting = [data.shape.index(size) for size in sorted(_CHANNELS) if size in data.shape]
        if not fitting:
            raise ValueError("no axis of %s is of three or four channels" % (data.shape,))
        channel_axis = fitting[0]
    if data.shape[channel_axis] not in _CHANNELS:
        raise ValueError("axis %d of %s is not of three or four channels" % (channel_axis, data.shape))
    pixels = np.ascontiguousarray(np.moveaxis(bytescale(data, cmin, cmax, high, low), channel_axis, 2))
    return make(pixels, mode or _CHANNELS[pixels.shape[2]])


def imsave(name, arr, format=None):
    """Writes numbers as a picture (toimage), of a format that follows from the name unless it is given."""
    image = toimage(arr, channel_axis=2 if np.ndim(arr) == 3 else None)
    if format is None:
        image.save(name)
    else:
        image.save(name, format)


def imresize(arr, size, interp="bilinear", mode=None):
    """uint8 of a picture of another size.

    Args:
      arr, mode: as of toimage.
      size: percent as an int, a fraction as a float, or (rows, columns).
      interp: "nearest", "lanczos", "bilinear", "bicubic" or "cubic".
    """
    image = toimage(arr, mode=mode)
    if isinstance(size, (int, np.integer)):
        columns, rows = (int(each * (size / 100.0)) for each in image.size)
    elif isinstance(size, (float, np.floating)):
        columns, rows = (int(each * size) for each in image.size)
    else:
        rows, columns = size
    return fromimage(image.resize((int(columns), int(rows)), resample=_filter(interp)))


def imrotate(arr, angle, interp="bilinear"):
    """uint8 of a picture that is turned by degrees against the clock around its middle."""
    return fromimage(toimage(arr).rotate(angle, resample=_filter(interp)))


def _filter(name):
    if name not in _FILTERS:
        raise ValueError("`interp` is one of %s, not %r" % (", ".join(_FILTERS), name))
    return getattr(_pillow(), ("bicubic" if name == "cubic" else name).upper())
