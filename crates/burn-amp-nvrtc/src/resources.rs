//! What a kernel needs: read from the assembler's log and from the virtual assembly.

use serde::Serialize;

/// What the assembler says of a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory that is declared in the kernel, in bytes.
    pub static_shared_memory: u32,
    /// Local memory of a thread, in bytes: arrays that are not in registers, and spills.
    pub stack: u32,
    /// Bytes that a thread writes to local memory for want of registers.
    pub spill_stores: u32,
    /// Bytes that it reads back.
    pub spill_loads: u32,
}

impl Resources {
    /// Reads the lines that `ptxas -v` writes; none if no kernel is among them.
    pub fn parse(log: &str) -> Option<Self> {
        let mut resources = Self::default();
        let mut is_complete = false;
        for line in log.lines().filter(|line| line.starts_with("ptxas")) {
            // Functions that were not inlined have frames of their own.
            if let Some(stack) = before(line, " bytes stack frame") {
                resources.stack = resources.stack.max(stack);
                resources.spill_stores += before(line, " bytes spill stores").unwrap_or(0);
                resources.spill_loads += before(line, " bytes spill loads").unwrap_or(0);
            }
            if let Some(registers) = before(line, " registers") {
                resources.registers = resources.registers.max(registers);
                resources.static_shared_memory += before(line, " bytes smem").unwrap_or(0);
                is_complete = true;
            }
        }
        is_complete.then_some(resources)
    }

    /// Bytes that go to local memory and back for want of registers.
    pub fn spills(&self) -> u32 {
        self.spill_stores + self.spill_loads
    }
}

/// The number in front of the words.
fn before(line: &str, words: &str) -> Option<u32> {
    let text = &line[..line.find(words)?];
    let start = text
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + 1);
    text[start..].parse().ok()
}

/// Instructions that tell how a kernel computes and loads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Instructions {
    /// Products on tensor cores, as often as they are written.
    pub tensor_core: usize,
    /// Bytes of the widest load from global memory.
    pub widest_load: usize,
    /// Bytes of the widest store to global memory.
    pub widest_store: usize,
}

const TENSOR_CORE: [&str; 3] = ["mma.sync.", "wmma.mma.", "wgmma.mma_async."];

impl Instructions {
    /// Reads PTX.
    pub fn parse(ptx: &str) -> Self {
        let mut found = Self::default();
        for opcode in ptx.lines().filter_map(opcode) {
            if TENSOR_CORE.iter().any(|name| opcode.starts_with(name)) {
                found.tensor_core += 1;
            } else if opcode.starts_with("ld.global.") {
                found.widest_load = found.widest_load.max(width(opcode));
            } else if opcode.starts_with("st.global.") {
                found.widest_store = found.widest_store.max(width(opcode));
            } else if opcode.starts_with("cp.async.c") {
                // The size is an operand, and 16 for all but the narrow form.
                found.widest_load =
                    found
                        .widest_load
                        .max(if opcode.contains(".cg.") { 16 } else { 4 });
            }
        }
        found
    }
}

/// The instruction of a line, without the braces of inline assembly and without its predicate.
fn opcode(line: &str) -> Option<&str> {
    let line = line.trim_start_matches(|c: char| c == '{' || c.is_whitespace());
    let line = match line.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace)?.1.trim_start(),
        None => line,
    };
    let opcode = line.split([' ', '\t', ';']).next()?;
    opcode
        .starts_with(|c: char| c.is_ascii_lowercase())
        .then_some(opcode)
}

/// Bytes that a load or store moves: lanes times the size of the type that ends it.
fn width(opcode: &str) -> usize {
    let lanes = opcode
        .split('.')
        .find_map(|part| part.strip_prefix('v')?.parse().ok())
        .unwrap_or(1);
    let bits: usize = opcode
        .rsplit('.')
        .next()
        .and_then(|ty| {
            ty.trim_start_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .ok()
        })
        .unwrap_or(0);
    lanes * bits / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kernel' for 'sm_90a'
ptxas info    : Function properties for kernel
ptxas         .     48 bytes stack frame, 32 bytes spill stores, 36 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 48 bytes cumulative stack size, 1024 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 2.810 ms
";

    #[test]
    fn resource_lines_are_read() {
        assert_eq!(
            Resources::parse(LOG),
            Some(Resources {
                registers: 168,
                static_shared_memory: 1024,
                stack: 48,
                spill_stores: 32,
                spill_loads: 36,
            })
        );
    }

    #[test]
    fn spills_of_functions_that_are_not_inlined_count() {
        let function = "\
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";
        let resources = Resources::parse(&format!("{LOG}{function}"));
        assert_eq!(resources.map(|all| all.spills()), Some(76));
        assert_eq!(resources.map(|all| all.stack), Some(48));
    }

    #[test]
    fn a_log_without_a_kernel_is_not_a_kernel_without_needs() {
        assert_eq!(Resources::parse(""), None);
        assert_eq!(Resources::parse("ptxas info    : 0 bytes gmem"), None);
        let source = "default_program(3): warning: 12 registers";
        assert_eq!(Resources::parse(source), None);
    }

    #[test]
    fn tensor_core_instructions_are_counted_once() {
        let ptx = "
\t// begin inline asm
\t{mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1},{%r1},{%r2},{%f2};}
\t// end inline asm
\twmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f1}, {%r1}, {%r2}, {%f2};
\t@%p1 wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd2;
\twmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1}, [%rd1], 16;
\t// mma.sync.in a comment
";
        assert_eq!(Instructions::parse(ptx).tensor_core, 3);
    }

    #[test]
    fn widest_access_is_found() {
        let ptx = "
\tld.global.u32 %r1, [%rd1];
\tld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
\tld.shared.v4.b64 {%rd1, %rd2, %rd3, %rd4}, [%rd1];
\t@%p1 st.global.v2.b16 [%rd2], {%rs1, %rs2};
";
        let found = Instructions::parse(ptx);
        assert_eq!((found.widest_load, found.widest_store), (16, 4));
    }
}
