"""Streams of the libraries that users have, read shard by shard: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import grain
import pytest
import webdataset
from builders.scripted_connection import ScriptedSession
from diloco.session.data_feed import Shard

pytestmark = pytest.mark.slow

SAMPLES = 50


def one_epoch(count: int) -> list[Shard]:
    """All shards that a unit alone in its job reads in its first epoch, with a step in each."""
    learner = ScriptedSession().join()
    read = []
    for shard in learner.session.shards(count, seed=1):
        if shard.epoch == 1:
            break
        read.append(shard)
        learner.step()
    return read


def test_a_streaming_data_set_of_datasets() -> None:
    stream = datasets.Dataset.from_dict({"number": list(range(SAMPLES))}).to_iterable_dataset(num_shards=8)
    shards = one_epoch(stream.num_shards)
    read = [row["number"] for shard in shards for row in stream.shard(num_shards=shard.count, index=shard.index)]
    assert sorted(read) == list(range(SAMPLES))
    assert read != sorted(read), "the shards come in an order of their own"


def test_a_map_data_set_of_grain() -> None:
    data = grain.MapDataset.source(range(SAMPLES))
    read = [number for shard in one_epoch(8) for batch in data[shard.index :: shard.count].to_iter_dataset().batch(3) for number in batch]
    assert sorted(read) == list(range(SAMPLES))


def test_a_data_set_of_webdataset(tmp_path: Path) -> None:
    urls = [str(tmp_path / f"{index}.tar") for index in range(8)]
    for index, url in enumerate(urls):
        with webdataset.TarWriter(url) as archive:
            for number in range(index, SAMPLES, len(urls)):
                archive.write({"__key__": f"{number}", "json": {"number": number}})
    read = [
        json.loads(sample["json"])["number"]
        for shard in one_epoch(len(urls))
        for sample in webdataset.WebDataset(urls[shard.index], shardshuffle=False)
    ]
    assert sorted(read) == list(range(SAMPLES))
