"""The interpreter of PTX code, on code as two compilers write it."""

from __future__ import annotations

import sys
from pathlib import Path

import compcache_conformance

sys.path.insert(0, str(Path(compcache_conformance.__file__).parent / "drivers"))
from conformance_ptx import run  # type: ignore[import-not-found]

HEAD = """
.visible .entry kernel_f(.param .u64 kernel_f_param_0, .param .f64 kernel_f_param_1)
{
"""


def test_a_stored_double_is_the_answer() -> None:
    body = """ld.param.u64 %rd1, [kernel_f_param_0];
    ld.param.f64 %fd1, [kernel_f_param_1];
    fma.rn.f64 %fd2, %fd1, 0d4000000000000000, 0d3FF0000000000000;
    st.global.f64 [%rd2], %fd2;
    ret;
}"""
    assert run(HEAD + body, "kernel_f", [3.0]) == 7.0


def test_stores_of_one_thread_under_a_predicate_count() -> None:
    body = """ld.param.b64 \t%rd3, [kernel_f_param_1];   // a comment
    mul.f64 \t%rd1, %rd3, 0d4008000000000000;
    sub.f64 \t%rd4, %rd1, 0d3FF0000000000000;
    @%p1 st.global.b64 [ %rd2 + 0 ], { %rd4 };
    ret;
}"""
    assert run(HEAD + body, "kernel_f", [3.0]) == 8.0
