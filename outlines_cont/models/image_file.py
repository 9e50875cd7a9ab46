"""`open_image`: an image of PIL, a path, the bytes of a file, an array or a `data:` URL as an RGB image of PIL, turned as its file says,
on white where it is transparent; of an animation the first frame; greys of 16 bits become bytes. Limits of bytes and pixels are checked
before anything is decoded, as a small file may have billions of pixels. Nothing is fetched from the network. Needs pillow, which is
imported when the first image is opened.
`thumbnail`: a small picture of an image, for pages. `is_picture`, `is_image`: whether a value is one, without an import of pillow.
"""

from __future__ import annotations

import base64
import binascii
import io
import stat
import sys
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from outlines_cont.checks import check_limits
from outlines_cont.errors import ImageError, shortened

_SIDE = 96  # pixels of the longer side of a thumbnail


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """The largest images that are opened.

    Attributes:
        file_bytes: the bytes of a file, or of the data in a URL.
        pixels: width times height.
    """

    file_bytes: int | None = 64 * 2**20
    pixels: int | None = 64 * 10**6

    def __post_init__(self) -> None:
        check_limits(self)


LIMITS = ImageLimits()


def open_image(source: Any, limits: ImageLimits = LIMITS) -> Any:
    """Return an image of PIL in RGB.

    Args:
        source: an image of PIL, the path of a file, its bytes, an array (H, W, 3) or (H, W) of bytes, or a `data:` URL.
        limits: the largest image.

    Raises:
        ImageError: it is none of these, cannot be read, or is larger than the limits.
        ImportError: pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError("images need pillow: `pip install 'outlines-cont[images]'`") from error
    if isinstance(source, Image.Image):
        _check_pixels(source.size, limits)
        try:
            return _upright(source)
        except ImageError:
            raise
        except Exception as error:  # PIL reads the pixels of a file as late as here
            raise ImageError(
                f"expected an image that PIL can read, got {source.mode} of {source.size}: {error}"
            ) from error
    if hasattr(source, "__array__") or hasattr(source, "detach"):
        return Image.fromarray(_checked_array(source, limits))
    data = _data(source, limits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, whose size is checked here
            with Image.open(io.BytesIO(data)) as image:
                _check_pixels(image.size, limits)
                image.load()
                return _upright(image)
    except ImageError:
        raise
    except UnidentifiedImageError as error:  # whose text has an address in memory
        raise ImageError(_unreadable(source, data, "none that PIL knows" if data else "an empty file")) from error
    except Image.DecompressionBombError as error:  # PIL has limits of its own
        most = f"at most {limits.pixels:,}" if limits.pixels is not None else "fewer"
        raise ImageError(f"expected an image of {most} pixels ({_shown(source)}): {error}") from error
    except Exception as error:  # those of many decoders
        raise ImageError(_unreadable(source, data, error)) from error


def is_picture(value: object) -> bool:
    """Return whether a value is an image of PIL."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def is_pixels(value: object) -> bool:
    """Return whether a value is an array (H, W, 3) of bytes."""
    shape: Any = getattr(value, "shape", ())
    is_array = hasattr(value, "__array__") and len(shape) == 3 and shape[2] == 3
    return is_array and str(getattr(value, "dtype", "")).removeprefix("torch.") == "uint8"


def is_image(value: object) -> bool:
    """Return whether a value is an image of PIL, an array (H, W, 3) of bytes, the bytes of a file, or a path as a `Path`."""
    return is_picture(value) or is_pixels(value) or isinstance(value, bytes | bytearray | memoryview | PathLike)


def _unreadable(source: Any, data: bytes, why: object) -> str:
    return f"expected the file of an image that PIL reads, such as PNG or JPEG, got {len(data)} bytes ({_shown(source)}): {why}"


def thumbnail(image: Any) -> str:
    """Return an image of PIL in RGB as a `data:` URL of a JPEG of at most 96 x 96 pixels: some 2 kB. Cost: about 1 ms."""
    ratio, file = min(_SIDE / max(image.size), 1), io.BytesIO()
    small = image.resize([max(round(side * ratio), 1) for side in image.size], reducing_gap=2.0)
    small.save(file, format="JPEG", quality=70)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _upright(image: Any) -> Any:
    from PIL import Image, ImageOps

    turned = _of_bytes(ImageOps.exif_transpose(image), image.format)
    turned = turned.convert("LA") if turned.mode == "La" else turned  # which PIL converts to nothing else
    if turned.mode in ("RGBA", "RGBa", "LA", "PA") or "transparency" in turned.info:
        layer = turned.convert("RGBA")
        turned = Image.new("RGBA", layer.size, "white")
        turned.alpha_composite(layer)
    return turned.convert("RGB")


def _of_bytes(image: Any, file_format: str | None) -> Any:
    """Return an image whose greys are bytes: PIL would make white of all 16-bit greys above 255, and black of floats from 0 to 1."""
    is_16_bit = image.mode.startswith("I;16") or (image.mode == "I" and file_format == "PNG")  # that of pillow 10.1
    if not is_16_bit and image.mode not in ("I", "F"):
        return image
    import numpy as np
    from PIL import Image

    greys: Any = np.asarray(image).astype(np.float32)
    low, high = greys.min(), greys.max()
    if is_16_bit:
        greys = (greys / 257).round()
    elif not 0 <= low <= high <= 255 or (image.mode == "F" and high <= 1):
        raise ImageError(
            f"expected an image of 8 or 16 bits, got greys from {low:g} to {high:g} ({image.mode}). Save it with 8 bits."
        )
    return Image.fromarray(greys.astype(np.uint8))


def _data(source: Any, limits: ImageLimits) -> bytes:
    """Return the bytes of a file."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _checked_size(bytes(source), limits)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return _checked_size(_of_url(source, limits), limits)
    if isinstance(source, str) and source.partition("://")[0].lower() in ("http", "https", "ftp"):
        raise ImageError(
            f"expected an image, got {_shown(source)}: URLs are not fetched. Fetch it, and pass its bytes."
        )
    if not isinstance(source, str | PathLike):
        raise ImageError(
            f"expected an image of PIL, a path, bytes, an array of bytes or a `data:` URL, got {type(source).__name__}"
        )
    try:
        found = Path(source).stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):  # of which there may be no end
            raise ImageError(f"expected the path of an image, but {_shown(source)} is no regular file")
        _check_size(found.st_size, limits)
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, ImageError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"expected the path of an image, but {_shown(source)} cannot be read: {reason}") from error


def _of_url(url: str, limits: ImageLimits) -> bytes:
    """Return the data in a `data:` URL."""
    head, comma, body = url.partition(",")
    if not comma:
        raise ImageError("expected a URL such as `data:image/png;base64,...`, got one without a comma")
    if limits.file_bytes is not None:
        _check_size(len(body) * 3 // 4 - 3, limits)
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"expected base64 after the comma of a `data:` URL: {error}") from error


def _checked_array(source: Any, limits: ImageLimits) -> Any:
    import numpy as np

    array = np.asarray(source.detach().cpu() if hasattr(source, "detach") else source)
    is_image = array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)) and array.size
    if not is_image:
        raise ImageError(
            f"expected an array (H, W, 3) or (H, W) of bytes (uint8), got {array.shape} of {array.dtype}. Of floats from 0 to 1 make them: "
            "`(array * 255).astype('uint8')`."
        )
    _check_pixels((array.shape[1], array.shape[0]), limits)
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)


def _checked_size(data: bytes, limits: ImageLimits) -> bytes:
    _check_size(len(data), limits)
    return data


def _check_size(size: int, limits: ImageLimits) -> None:
    if limits.file_bytes is not None and size > limits.file_bytes:
        raise ImageError(f"expected an image of at most {limits.file_bytes:,} bytes, got {size:,}. Make it smaller.")


def _check_pixels(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if not width or not height:
        raise ImageError(f"expected an image with pixels, got {width} x {height}")
    if limits.pixels is not None and width * height > limits.pixels:
        raise ImageError(
            f"expected an image of at most {limits.pixels:,} pixels, got {width} x {height}. Make it smaller."
        )


def _shown(source: Any) -> str:
    return shortened(repr(str(source) if isinstance(source, PathLike) else source), 80)
