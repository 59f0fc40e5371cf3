"""A unit with a decoder of step-tax-gpu, which trains until it is killed.

    python -m benchmarks.device.decoder_learner TIMES --mebibytes 0 --step-seconds 0 --shape 1B --device cuda --rows 8

TIMES gets one line for each step: seconds of CLOCK_MONOTONIC. The program ends with the process that started it.
"""

from __future__ import annotations

import time

import diloco.torch

from benchmarks.device.decoders import SHAPES, Decoder
from benchmarks.fixed_step_learner import parser_of_rig


def main() -> None:
    parser = parser_of_rig()
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--rows", type=int, required=True)
    given = parser.parse_args()
    decoder = Decoder(given.shape, given.device, given.rows)
    with (
        given.times.open("w", encoding="ascii", buffering=1) as times,
        diloco.torch.join(decoder.model, optimizer=decoder.optimizer) as session,
    ):
        for _ in session.batches(lambda numbers: numbers, given.rows):
            loss = decoder.update()
            session.step(tokens=decoder.tokens, loss=loss)
            times.write(f"{time.monotonic():.6f}\n")


if __name__ == "__main__":
    main()
