"""The linear map of stacked models, with its bias.

Shapes: S stacked models, N rows of a model, K inputs, M outputs.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.product_triton import add_product


@triton.jit
def _linear_kernel(
    x, weight, bias, y, rows_in_all, inputs_in_all, outputs_in_all, weight_stride, bias_stride,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    first_output = tl.program_id(0) * OUTPUTS  # neighbouring programs share the rows of x
    first_row = tl.program_id(1) * ROWS
    rows, outputs = tl.arange(0, ROWS), tl.arange(0, OUTPUTS)
    real_rows = rows[:, None] < rows_in_all - first_row
    real_outputs = outputs < outputs_in_all - first_output
    # Within a tile, 32 bits reach every place and take half the registers.
    x += (model * rows_in_all + first_row) * inputs_in_all
    y += (model * rows_in_all + first_row) * outputs_in_all + first_output
    weight += model * weight_stride + first_output.to(tl.int64) * inputs_in_all
    bias += model * bias_stride + first_output
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inputs_in_all, INPUTS):
        inputs = start + tl.arange(0, INPUTS)
        places = rows[:, None] * inputs_in_all + inputs[None, :]
        part = tl.load(x + places, real_rows & (inputs[None, :] < inputs_in_all), 0.0)
        places = outputs[None, :] * inputs_in_all + inputs[:, None]
        factor = tl.load(weight + places, (inputs[:, None] < inputs_in_all) & real_outputs[None, :], 0.0)
        total = add_product(total, part, factor, PRECISION)
    total += tl.load(bias + outputs, real_outputs, 0.0)[None, :]
    tl.store(y + (rows[:, None] * outputs_in_all + outputs[None, :]), total, real_rows & real_outputs[None, :])


TILE = {"ROWS": 128, "OUTPUTS": 64, "num_warps": 8}
"""Small, so that many programs read and write memory at once, which is what the time is spent on."""


def forward(x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    """x (S, N, K), weight (S, M, K), bias (S, M) -> (S, N, M)."""
    models, rows, inputs = x.shape
    outputs = weight.shape[1]
    y = x.new_empty(models, rows, outputs)
    weight = weight if weight[0].is_contiguous() else weight.contiguous()
    bias = bias if bias.stride(1) == 1 else bias.contiguous()
    width = max(16, min(64, triton.next_power_of_2(inputs)))
    # Without a next part to fetch ahead, the room for it is left to other programs.
    stages = 1 if inputs <= width else 3
    grid = (triton.cdiv(outputs, TILE["OUTPUTS"]), triton.cdiv(rows, TILE["ROWS"]), models)
    _linear_kernel[grid](
        x, weight, bias, y, rows, inputs, outputs, weight.stride(0), bias.stride(0),
        INPUTS=width, PRECISION=precision, num_stages=stages, **TILE,
    )  # fmt: skip
    return y
