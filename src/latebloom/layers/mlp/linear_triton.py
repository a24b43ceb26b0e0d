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
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)  # neighbouring programs share the rows of x
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    x += (model * rows_in_all + rows[:, None]) * inputs_in_all
    weight += model * weight_stride + outputs[None, :] * inputs_in_all
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inputs_in_all, INPUTS):
        inputs = start + tl.arange(0, INPUTS)
        part = tl.load(x + inputs[None, :], (rows[:, None] < rows_in_all) & (inputs[None, :] < inputs_in_all), 0.0)
        known = (inputs[:, None] < inputs_in_all) & (outputs[None, :] < outputs_in_all)
        total = add_product(total, part, tl.load(weight + inputs[:, None], known, 0.0), PRECISION)
    total += tl.load(bias + model * bias_stride + outputs, outputs < outputs_in_all, 0.0)[None, :]
    place = (model * rows_in_all + rows[:, None]) * outputs_in_all + outputs[None, :]
    tl.store(y + place, total, (rows[:, None] < rows_in_all) & (outputs[None, :] < outputs_in_all))


def forward(x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    """x (S, N, K), weight (S, M, K), bias (S, M) -> (S, N, M)."""
    models, rows, inputs = x.shape
    outputs = weight.shape[1]
    y = x.new_empty(models, rows, outputs)
    weight = weight if weight[0].is_contiguous() else weight.contiguous()
    bias = bias if bias.stride(1) == 1 else bias.contiguous()
    grid = (triton.cdiv(outputs, 64), triton.cdiv(rows, 64), models)
    _linear_kernel[grid](
        x, weight, bias, y, rows, inputs, outputs, weight.stride(0), bias.stride(0),
        ROWS=64, OUTPUTS=64, INPUTS=max(16, min(64, triton.next_power_of_2(inputs))), PRECISION=precision,
    )  # fmt: skip
    return y
