"""Weight files hold what they were given, in the order it came, and tell the hash of each piece."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from learner.training.model.weight_writer import NotFinite, WeightFile, not_finite

HEADER = b"seven b"


def write(path: Path, cuts: list[int], tensors: list[tuple[Tensor, torch.dtype]]) -> list[bytes]:
    with ThreadPoolExecutor(2) as threads:
        file = WeightFile(path, HEADER, cuts, threads)
        try:
            for tensor, dtype in tensors:
                file.add("some.weight", tensor, dtype)
            return [digest.tobytes() for digest in file.finish()]
        finally:
            file.close()


@pytest.mark.parametrize("many", [[], [19], [19, 819], [7, 19, 119, 219, 819, 3219, 7219]])
def test_pieces_are_the_bytes_in_order(tmp_path: Path, many: list[int]) -> None:
    torch.manual_seed(0)
    whole = torch.randint(0, 255, (12,), dtype=torch.uint8)
    halves = torch.randn(40, 10)
    fulls = torch.randn(80, 20, dtype=torch.bfloat16)
    tensors = [(whole, torch.uint8), (halves, torch.bfloat16), (fulls, torch.float32)]
    cuts = [*many, 7 + 12 + 800 + 6400]
    cuts = sorted(set(cuts))
    digests = write(tmp_path / "weights", cuts, tensors)
    expected = HEADER + b"".join(t.to(d).flatten().view(torch.uint8).numpy().tobytes() for t, d in tensors)
    assert (tmp_path / "weights").read_bytes() == expected
    assert digests == [sha256(expected[start:end]).digest() for start, end in pairwise([0, *cuts])]


@pytest.mark.parametrize("cuts", [[20, 807], [19], [7]])
def test_cuts_of_another_file_are_refused(tmp_path: Path, cuts: list[int]) -> None:
    with pytest.raises(ValueError, match="lies inside an element, or"):
        write(tmp_path / "weights", cuts, [(torch.zeros(12), torch.uint8), (torch.randn(400), torch.bfloat16)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("cuts", [[12807], [807, 12807]])
def test_a_number_that_is_not_finite_is_never_written(
    tmp_path: Path, dtype: torch.dtype, odd: float, cuts: list[int]
) -> None:
    values = torch.randn(12800 // dtype.itemsize)
    values[-1] = odd
    with pytest.raises(NotFinite, match=r"'some.weight' holds values that are not finite as b?float"):
        write(tmp_path / "weights", cuts, [(values, dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_finite_numbers_are_told_from_others_to_the_last_bit(dtype: torch.dtype) -> None:
    ends = torch.finfo(dtype)
    least = [ends.tiny, -ends.tiny, ends.smallest_normal / 2]
    finite = torch.tensor([0.0, -0.0, ends.max, ends.min, *least], dtype=torch.float64).to(dtype)
    assert not not_finite(finite)
    assert not not_finite(finite[:0])
    assert not not_finite(torch.full((3,), -1, dtype=torch.int32))
    odd = [torch.nan] if dtype == torch.float8_e4m3fn else [torch.nan, -torch.nan, torch.inf, -torch.inf]
    for value in odd:
        assert not_finite(torch.cat([finite, torch.tensor([value]).to(dtype), finite]))
    assert dtype.itemsize == 1 or not_finite(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]).to(dtype).T)


def test_a_number_that_the_format_has_no_room_for_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match="as float16"):
        write(tmp_path / "weights", [11], [(torch.tensor([1.0, 1e5]), torch.float16)])


def test_a_file_that_was_given_too_little_is_never_finished(tmp_path: Path) -> None:
    """A header that speaks of more than was written makes a file that nobody can read."""
    with pytest.raises(ValueError, match="ends at 47 bytes, but its header announces more"):
        write(tmp_path / "weights", [47, 87], [(torch.randn(10), torch.float32)])
