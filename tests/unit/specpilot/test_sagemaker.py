import shlex

from specpilot.sagemaker import REFUSED, stated


def test_variables_become_flags_of_vllm() -> None:
    found = stated(
        {
            "SM_VLLM_MAX_MODEL_LEN": "4096",
            "SM_VLLM_ENFORCE_EAGER": "true",
            "SM_VLLM_ENABLE_LORA": "False",
            "SM_VLLM_SPECULATIVE_CONFIG": '{"method": "eagle3", "model": "/opt/ml/model/head"}',
            "SM_HOSTS": "[]",
            "SM_MODEL_DIR": "/opt/ml/model",
            "SAGEMAKER_MODEL_SERVER_WORKERS": "4",
            "PATH": "/bin",
        }
    )
    assert found.faults == ()
    assert shlex.split(found.engine_args) == [
        "--enforce-eager",
        "--max-model-len",
        "4096",
        "--speculative-config",
        '{"method": "eagle3", "model": "/opt/ml/model/head"}',
    ]


def test_white_space_around_a_value_goes() -> None:
    found = stated({"SAGEMAKER_BIND_TO_PORT": "9000\n", "SM_NUM_GPUS": " 2\n", "SM_VLLM_ENFORCE_EAGER": "true\n"})
    assert (found.faults, found.settings["port"]) == ((), "9000")
    assert found.engine_args == "--tensor-parallel-size 2 --enforce-eager"


def test_a_container_serves_two_paths_on_one_port_and_the_mounted_model() -> None:
    assert stated({}).settings == {
        "model": "/opt/ml/model",
        "host": "0.0.0.0",
        "public_paths": "/ping,/invocations",
    }
    found = stated({"SAGEMAKER_BIND_TO_PORT": "9000", "SM_VLLM_MODEL": "org/name", "SM_VLLM_SERVED_MODEL_NAME": "m"})
    assert found.settings["port"] == "9000"
    assert found.settings["model"] == "org/name"
    assert found.settings["served_model_name"] == "m"
    assert found.engine_args == ""


def test_the_other_ports_are_of_the_range_that_is_safe() -> None:
    found = stated({"SAGEMAKER_SAFE_PORT_RANGE": "9000-9999"})
    assert (found.settings["admin_port"], found.settings["engine_port"]) == ("9000", "9001")
    for wrong in ("9000", "9000-", "9999-9000", "a-b"):
        [fault] = stated({"SAGEMAKER_SAFE_PORT_RANGE": wrong}).faults
        assert repr(wrong) in fault


def test_each_controller_and_engine_has_a_port_of_its_own_in_that_range() -> None:
    found = stated({"SAGEMAKER_SAFE_PORT_RANGE": "9000-9003"}, engines=2, controllers=2)
    assert (found.settings["admin_port"], found.settings["engine_port"]) == ("9000", "9002")
    [fault] = stated({"SAGEMAKER_SAFE_PORT_RANGE": "9000-9002"}, engines=2, controllers=2).faults
    assert fault.startswith("SAGEMAKER_SAFE_PORT_RANGE: '9000-9002' is no range of 4 ports")


def test_engines_divide_the_gpus_among_them() -> None:
    assert stated({"SM_NUM_GPUS": "4"}, engines=2).engine_args == "--tensor-parallel-size 2"
    assert stated({"SM_NUM_GPUS": "4"}, engines=4).engine_args == ""
    assert stated({"SM_NUM_GPUS": "1"}, engines=2).faults == ()  # they share it
    for engines in (3, 8):
        [fault] = stated({"SM_NUM_GPUS": "4"}, engines=engines).faults
        assert fault.startswith("SM_NUM_GPUS: 4 GPUs")
        assert "SM_VLLM_TENSOR_PARALLEL_SIZE" in fault
    assert stated({"SM_NUM_GPUS": "4", "SM_VLLM_TENSOR_PARALLEL_SIZE": "1"}, engines=3).faults == ()


def test_the_number_of_gpus_is_the_tensor_parallelism_unless_that_is_stated() -> None:
    assert stated({"SM_NUM_GPUS": "4"}).engine_args == "--tensor-parallel-size 4"
    assert stated({"SM_NUM_GPUS": "4", "SM_VLLM_TENSOR_PARALLEL_SIZE": "2"}).engine_args == "--tensor-parallel-size 2"
    assert [stated({"SM_NUM_GPUS": count}).engine_args for count in ("", "0", "1")] == [""] * 3
    assert "'all'" in stated({"SM_NUM_GPUS": "all"}).faults[0]


def test_an_endpoint_of_many_models_is_refused() -> None:
    assert "one model" in stated({"SAGEMAKER_MULTI_MODEL": "true"}).faults[0]
    assert stated({"SAGEMAKER_MULTI_MODEL": "false"}).faults == ()


def test_what_would_open_the_engine_to_others_is_refused_with_the_remedy() -> None:
    found = stated({f"SM_VLLM_{name}": "x" for name in REFUSED})
    assert len(found.faults) == len(REFUSED)
    assert all(fault.startswith("SM_VLLM_") and ";" in fault for fault in found.faults)
    assert found.engine_args == ""
