"""A result can be sent to another process or kept in a file."""

import pickle

import perfmodel
from perfmodel.report.run.export import to_json


def test_a_result_is_the_same_after_pickling():
    result = perfmodel.run(perfmodel.load_scenario("resnet50-dgx-a100", ["scale.gpus=[1]"]))
    assert to_json(pickle.loads(pickle.dumps(result))) == to_json(result)
