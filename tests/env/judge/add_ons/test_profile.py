"""What ran: names to origins, what is believed of a worker's word, and the whole path on a CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cudal1_data import Task
from cudal1_env.commands.output import details
from cudal1_env.judge import Judge, JudgeSettings
from cudal1_env.judge.add_ons.profile import OddProfileError, parse_profile
from cudal1_env.origin import origin_of, triton_names
from cudal1_env.records import Origin, Status
from cudal1_worker import protocol as wire
from cudal1_worker.program.profile import OUTSIDE, profiled
from doubles.judges import QUICK

# Names as profilers print them, from published profiles of PyTorch programs (arguments shortened).
NAMES: list[tuple[str, Origin]] = [
    ("Memcpy DtoD (Device -> Device)", "memory"),
    ("Memcpy HtoD (Pageable -> Device)", "memory"),
    ("Memset (Device)", "memory"),
    ("triton_poi_fused_add_relu_0", "inductor"),
    ("triton_red_fused_native_layer_norm_2", "inductor"),
    ("triton_per_fused__softmax_1", "inductor"),
    ("triton_tem_fused_mm_3", "inductor"),
    ("Torch-Compiled Region: 0/0", "inductor"),
    ("## Call CompiledFxGraph fxbq3 ##", "inductor"),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >",
        "aten",
    ),
    (
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<float> > >",
        "aten",
    ),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>", "aten"),
    (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, float const*)",
        "aten",
    ),
    ("void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<float> >", "aten"),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128> >", "aten"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)", "aten"),
    ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::GemmUniversal> >", "aten"),
    ("_ZN2at6native89_GLOBAL__N__65_tmpxft_00001610_00000000_10_DistributionNormal", "aten"),
    ("aten::addmm", "aten"),
    ("ampere_sgemm_128x64_nn", "cublas"),
    ("volta_sgemm_32x128_tn", "cublas"),
    ("ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn", "cublas"),
    ("ampere_gcgemm_64x64_nt", "cublas"),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage3_warpsize2x2x1_kernel", "cublas"),
    ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_segment_k_off_kernel__5x_cublas", "cublas"),
    ("nvjet_tst_128x24_64x11_2x1_v_bz_TNT", "cublas"),
    ("nvjet_sm100_tst_64x32_64x16_2x1_2cta_h_bz_splitK_TNT", "cublas"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)", "cublas"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(T1::Params)", "cublas"),
    ("cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_32x32x16_1x1x1_3_tnn_align1_bias_f32_relu", "cublas"),
    (
        "void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParams<int> >",
        "cublas",
    ),
    ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float>", "cublas"),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const> >", "cublas"),
    ("void gemmk1_kernel<int, float, 256, 5, false, false, false, false, cublasGemvTensorStridedBatched>", "cublas"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>", "cublas"),
    ("void splitKreduce_kernel<32, 16, int, float, float, float>", "cublas"),
    ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, float> >", "cublas"),
    ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>", "cudnn"),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "cudnn"),
    ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>", "cudnn"),
    ("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false>", "cudnn"),
    ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>", "cudnn"),
    ("void precomputed_convolve_sgemm<float, 512, 6, 8, 3, 3, 5, 0, false>", "cudnn"),
    ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x32", "cudnn"),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc", "cudnn"),
    ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_execute_kernel__5x_cudnn", "cudnn"),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x6>", "cudnn"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688fprop_optimized_tf32_64x64_16x10>(T1::Params)", "cudnn"),
    ("_5x_cudnn_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "cudnn"),
    ("cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "cudnn"),
    ("maxwell_scudnn_winograd_128x128_ldg1_ldg4_mobile_relu_tile148t_nt_v0", "cudnn"),
    ("void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4>", "library"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "library"),
    ("void vector_fft<256u, EPT<16u>, 16u>(kernel_arguments_t<unsigned int>)", "library"),
    ("mkldnn::_linear_pointwise", "library"),
    ("void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float> >", "library"),
    ("softmax_kernel(float const*, float*, int)", "own"),
    ("void row_sums<c10::Half>(c10::Half const*, float*, int)", "own"),
    ("void fused<at::native::AddFunctor<float> >(float*)", "own"),
    ("gemm_kernel(float const*, float const*, float*, int, int, int)", "own"),
    ("void dot_kernel<float>(float const*, float const*, float*)", "own"),
    ("(anonymous namespace)::scan_kernel(float*, int)", "own"),
    ("void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaPipelined<> > >", "own"),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int> > >", "own"),
    (OUTSIDE, "own"),
    ("candidate::softmax", "own"),
]

TRITON = """
import triton
import triton.language as tl

@triton.autotune(configs=[
    triton.Config({"B": 64}),
], key=["n"])
@triton.jit
def mish_kernel(x, out, n, B: tl.constexpr):
    pass


@triton.jit(do_not_specialize=["n"])
# a comment
def other_kernel(x, n):
    pass


def plain(x):
    return x
"""


@pytest.mark.parametrize(("name", "origin"), NAMES)
def test_the_name_of_a_kernel_tells_its_origin(name: str, origin: Origin) -> None:
    assert origin_of(name) == origin


def test_the_programs_own_triton_kernels_are_known_by_its_text() -> None:
    names = triton_names(TRITON)
    assert names == {"mish_kernel", "other_kernel"}
    assert [origin_of(name, names) for name in ("mish_kernel", "plain", "triton_poi_fused_0")] == [
        "triton",
        "own",
        "inductor",
    ]
    assert triton_names("def jit(f): return f\n@jit\ndef mine(): pass\n") == frozenset()


def test_a_long_text_is_searched_once() -> None:
    began_s = time.process_time()
    assert triton_names("import triton\n" + "@jit\n" * 200_000) == frozenset()
    assert time.process_time() - began_s < 20  # looking from every line to the end takes half an hour


# --- the worker's word ---


def answer(**changes: Any) -> dict[str, Any]:
    return {"kernels": [["mine", 30.0, 5], ["aten::add", 10, 10]], "rest_us": 10.0, **changes}


def test_a_profile_is_of_one_call() -> None:
    found = parse_profile(answer(), calls=5, source="", device="cpu")
    assert (found.kind, found.call_us, found.rest_share) == ("operators", 10.0, 0.2)
    assert [(one.name, one.origin, one.share, one.call_us, one.launches) for one in found.kernels] == [
        ("mine", "own", 0.6, 6.0, 1.0),
        ("aten::add", "aten", 0.2, 2.0, 2.0),
    ]
    assert parse_profile(answer(), calls=5, source="", device="cuda").kind == "kernels"


def test_names_are_printable() -> None:
    found = parse_profile(answer(kernels=[["a\x1b[31m\nb\u00e9", 1.0, 1]]), calls=1, source="", device="cpu")
    assert found.kernels[0].name == "a?[31m?b?"


@pytest.mark.parametrize(
    "odd",
    [
        {"kernels": None},
        {"kernels": {}},
        {"kernels": []},
        {"kernels": [["a", 1.0, 1]] * (wire.MAX_KERNELS + 1)},
        {"kernels": [["a", 1.0]]},
        {"kernels": [[1, 1.0, 1]]},
        {"kernels": [["", 1.0, 1]]},
        {"kernels": [["a" * 201, 1.0, 1]]},
        {"kernels": [["\ud800", 1.0, 1]]},
        {"kernels": [["a", "1.0", 1]]},
        {"kernels": [["a", -1.0, 1]]},
        {"kernels": [["a", float("nan"), 1]]},
        {"kernels": [["a", float("inf"), 1]]},
        {"kernels": [["a", 10**400, 1]]},
        {"kernels": [["a", True, 1]]},
        {"kernels": [["a", 1.0, 0]]},
        {"kernels": [["a", 1.0, 1.5]]},
        {"kernels": [["a", 1.0, True]]},
        {"kernels": [["a", 1.0, 1 << 40]]},
        {"kernels": [["a", 0.0, 1]], "rest_us": 0.0},
        {"kernels": [["a", 5e-324, 1]], "rest_us": 0.0},
        {"rest_us": None},
        {"rest_us": float("nan")},
        {"error": "raised", "text": "no"},
        {"error": "raised", "text": 3},
    ],
)
def test_anything_odd_is_no_profile(odd: dict[str, Any]) -> None:
    with pytest.raises(OddProfileError):
        parse_profile(answer(**odd), calls=5, source="", device="cuda")


def test_the_worker_reports_operators_and_kernels_outside_of_them() -> None:
    def call() -> None:
        torch.zeros(8).add(1)
        time.sleep(0.01)

    found = parse_profile(profiled(call, lambda: None, calls=2, gpu=False), calls=2, source="", device="cpu")
    kernels = {one.name: one for one in found.kernels}
    assert (kernels["aten::add"].launches, kernels["aten::add"].origin) == (1.0, "aten")
    assert kernels[OUTSIDE].call_us > 9e3
    assert sum(one.share for one in found.kernels) == pytest.approx(1.0)


def test_the_worker_reports_a_bounded_number_of_names() -> None:
    def call() -> None:
        for number in range(wire.MAX_KERNELS + 20):
            with torch.profiler.record_function(f"{number}" + "x" * 300):
                pass

    told = profiled(call, lambda: None, calls=1, gpu=False)
    assert len(told["kernels"]) == wire.MAX_KERNELS
    assert max(len(name) for name, _, _ in told["kernels"]) == wire.MAX_KERNEL_NAME
    assert told["rest_us"] > 0.0
    parse_profile(told, calls=1, source="", device="cpu")


# --- the whole path, on a CPU ---

HEADER = "import torch\nimport torch.nn as nn\n"
REFERENCE = (
    f"{HEADER}class Model(nn.Module):\n    def forward(self, x):\n        return torch.softmax(x @ x.T, 1)\n"
    "def get_inputs():\n    return [0.1 * torch.randn(256, 256)]\ndef get_init_inputs():\n    return []\n"
)
TASK = Task(id="file/softmax", source=REFERENCE, name="softmax", level=1, origin="file")


def program(top: str = "", body: str = "return torch.softmax(torch.mm(x, x.T), 1)") -> str:
    return f"{HEADER}{top}\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        {body}\n"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(QUICK.model_copy(update={"profile": "always"})) as one:
        yield one


@pytest.mark.slow
def test_a_record_contains_the_profile(judge: Judge) -> None:
    one = judge.evaluate(TASK, program())
    assert one.status is Status.CORRECT, one.message
    assert one.profile is not None, one.profile_note
    names = {kernel.name: kernel for kernel in one.profile.kernels}
    assert {"aten::mm", "aten::_softmax"} <= set(names)
    assert names["aten::mm"].launches == 1.0
    assert one.profile_note == ""
    assert one.seconds.profile_s > 0.0
    assert any(line.startswith("profile: ") and " % ATen mm" in line for line in details(one))


def test_an_incorrect_program_is_not_profiled(judge: Judge) -> None:
    one = judge.evaluate(TASK, program(body="return torch.softmax(x @ x, 1)"))
    assert one.status is Status.WRONG_OUTPUT
    assert (one.profile, one.profile_note) == (None, "")


LIE = "import cudal1_worker.program.profile as told\ntold.profiled = lambda *a, **k: {answer}\n"


@pytest.mark.parametrize(
    ("top", "note"),
    [
        (LIE.format(answer="{'kernels': [['a', float('inf'), 1]], 'rest_us': 0}"), "faults"),
        (LIE.format(answer="{'kernels': [], 'rest_us': 0}"), "saw no operator"),
        (LIE.format(answer="1 / 0"), "ZeroDivisionError"),
        (LIE.format(answer="__import__('os')._exit(3)"), "exit"),
    ],
)
def test_a_failing_profile_is_a_note(judge: Judge, top: str, note: str) -> None:
    one = judge.evaluate(TASK, program(top))
    assert one.status is Status.CORRECT, one.message
    assert one.profile is None
    assert note in one.profile_note
    assert details(one)[-1] == one.profile_note


@pytest.mark.slow
def test_a_profile_is_made_at_report_precision_only() -> None:
    with Judge(JudgeSettings(device="cpu", budget_report_s=0.5)) as one:
        assert one.evaluate(TASK, program()).profile is None
        assert one.evaluate(TASK, program(), precision="report").profile is not None
    with Judge(JudgeSettings(device="cpu", budget_report_s=0.5, profile="never")) as one:
        assert one.evaluate(TASK, program(), precision="report").profile is None
