"""A toy model as users write it down, with faults of what is read."""

import pytest

from perfmodel.errors import InputError

CSV = """\
# exported by hand
name,shape,dtype,requires_grad,forward,backward_us
conv.weight,64x3x7x7,float32,true,1.2 ms,2400
conv.bias,(64),,,,
table.weight,"[10, 4]",torch.bfloat16,no,,
fc.weight,10x64,fp32,1,3 us,5
fc.bias,10,fp32,1,1 us,5
"""


YAML = """\
name: toy
sample: image
parameters:
  - {name: conv.weight, shape: [64, 3, 7, 7]}
  - {name: conv.bias, numel: 64, dtype: bf16}
  - {name: frozen, numel: 5, requires_grad: false}
  - {name: fc.weight, shape: 10x64}
layers:
  - {name: stem, parameters: [conv.weight, conv.bias], forward: 1.5 ms, backward: 3 ms}
  - {name: pool, forward: 10 us, backward: 20 us}
  - {name: head, parameters: [fc.weight], forward: 0.1 ms, backward: 0.2 ms, kernels: 2}
buffers: 1 KiB
launch: 6 us
optimizer: 1 ms
activations: 3 MiB
"""


def faults(call, *arguments):
    with pytest.raises(InputError) as raised:
        call(*arguments)
    return raised.value.faults
