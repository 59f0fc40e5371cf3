"""An optimizer with masters."""

from __future__ import annotations

import torch


class MasterSGD(torch.optim.Optimizer):
    """Keeps a float32 copy of each parameter in its state, as fused optimizers for bfloat16 do."""

    def __init__(self, parameters: object, rate: float) -> None:
        super().__init__(parameters, {"lr": rate})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                master = state.setdefault("master_param", parameter.detach().float())
                state.setdefault("exp_avg", torch.zeros_like(master))
                master.sub_(group["lr"] * parameter.grad.float())
                parameter.copy_(master)
