"""Tests of loops.py: python3 .ci/test_loops.py"""

import unittest

import loops

# A product of AVX2 that keeps one of its sums on the stack, as the compiler made it of a tile of 4 × 3.
SPILLED = """
0000000000000000 <product>:
   0:	vmovups (%rsi),%ymm12
   4:	vbroadcastss (%rdi),%ymm13
   8:	vfmadd231ps %ymm12,%ymm13,%ymm0
   c:	vfmadd231ps %ymm12,%ymm13,%ymm1
  10:	vfmadd231ps %ymm12,%ymm13,%ymm2
  14:	vfmadd231ps %ymm12,%ymm13,%ymm3
  18:	vfmadd231ps %ymm12,%ymm13,%ymm4
  1c:	vfmadd231ps %ymm12,%ymm13,%ymm5
  20:	vfmadd231ps %ymm12,%ymm13,%ymm6
  24:	vfmadd213ps 0xe0(%rsp),%ymm12,%ymm13
  2c:	vmovaps %ymm13,0xe0(%rsp)
  34:	dec    %rax
  37:	jne    0 <product>
  39:	ret
"""
CLEAN = SPILLED.replace("0xe0(%rsp),%ymm12,%ymm13", "%ymm12,%ymm13,%ymm7").replace("%ymm13,0xe0(%rsp)", "%ymm13,(%rdx)")
# Of 64-bit Arm, as GNU and LLVM print it.
ARM = """
0000000000000000 <product>:
   0:	ldr	q16, [x0]
   4:	fmla	v0.4s, v16.4s, v17.s[0]
   8:	fmla	v1.4s, v16.4s, v17.s[0]
   c:	fmla	v2.4s, v16.4s, v17.s[0]
  10:	fmla	v3.4s, v16.4s, v17.s[0]
  14:	fmla	v4.4s, v16.4s, v17.s[0]
  18:	fmla	v5.4s, v16.4s, v17.s[0]
  1c:	fmla	v6.4s, v16.4s, v17.s[0]
  20:	fmla	v7.4s, v16.4s, v17.s[0]
  24:	str	q0, [sp, #16]
  28:	b.ne	0x0 <product>
  2c:	ret
"""


def found(text):
    count, spilled = loops.examine(text.splitlines())
    return count, [len(accesses) for *_, accesses in spilled]


class Loops(unittest.TestCase):
    def test_a_sum_on_the_stack_is_found(self):
        self.assertEqual(found(SPILLED), (1, [2]))
        self.assertEqual(found(ARM), (1, [1]))

    def test_a_tile_in_registers_passes(self):
        self.assertEqual(found(CLEAN), (1, []))
        self.assertEqual(found(ARM.replace("[sp, #16]", "[x1]")), (1, []))

    def test_only_vectors_count(self):
        self.assertEqual(found(CLEAN.replace("dec    %rax", "decq   0x10(%rsp)")), (1, []))

    def test_few_multiply_adds_and_activations_are_left_out(self):
        few = SPILLED.replace("  20:\tvfmadd231ps %ymm12,%ymm13,%ymm6\n", "")
        self.assertEqual(found(few), (0, []))
        self.assertEqual(found(SPILLED.replace("vmovups (%rsi),%ymm12", "vmaxps %ymm1,%ymm2,%ymm12")), (0, []))

    def test_a_product_and_a_sum_are_a_multiply_add(self):
        pairs = "".join(f"  {4 * i:x}:\t{op} %xmm1,%xmm{i}\n" for i, op in enumerate(["mulps", "addps"] * 8))
        loop = f"0000000000000000 <product>:\n{pairs}  40:\tmovaps %xmm3,0x10(%rsp)\n  44:\tjb     0 <product>\n"
        self.assertEqual(found(loop), (1, [1]))

    def test_the_outer_loop_may_use_the_stack(self):
        outer = CLEAN.replace("  39:\tret", "  39:\tvmovaps %ymm0,(%rsp)\n  3d:\tjb     0 <product>\n  3f:\tret")
        self.assertEqual(found(outer), (1, []))

    def test_a_jump_back_from_after_the_end_is_no_loop(self):
        self.assertEqual(found(SPILLED.replace("dec    %rax", "ret")), (0, []))


if __name__ == "__main__":
    unittest.main()
