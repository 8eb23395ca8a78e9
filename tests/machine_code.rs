//! Machine code of the kernels' innermost loops, as objdump disassembles it.

use std::collections::BTreeMap;
use std::process::Command;

use octavo_fixtures::{Lacks, skip};
use regex::Regex;

/// Products of prompts with as many sums as registers: the sums stay there. AVX2's and AVX-VNNI's
/// tiles of integers have more sums than registers.
const TILES: [&str; 4] = [
    "octavo_isa::x86::avx2::tiles",
    "octavo_isa::x86::avx512::tiles",
    "octavo_isa::x86::avx512::int8_tiles",
    "octavo_isa::x86::avx512::int16_tiles",
];

/// Least number of products in a loop that is looked at.
const LEAST_PRODUCTS: usize = 8;

/// An innermost loop.
struct Loop {
    /// Address of its last instruction.
    end: u64,
    products: usize,
    /// Vectors written to the stack.
    spills: usize,
}

/// Returns the innermost loops of disassembled code, of those with enough products.
fn loops(code: &str) -> Vec<Loop> {
    let line = Regex::new(r"(?m)^ +([0-9a-f]+):\t(.*)$").expect("a pattern");
    let jump = Regex::new(r"^j\w+ +([0-9a-f]+)").expect("a pattern");
    let product = Regex::new(r"^(vfmadd|vpdp|vpmadd|vdpbf)").expect("a pattern");
    let spill = Regex::new(r"^vmov\w+ +%[xyz]mm\d+,.*\(%r[sb]p").expect("a pattern");
    let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
    let code: Vec<(u64, &str)> = line
        .captures_iter(code)
        .map(|found| (address(&found[1]), found.get(2).expect("a group").as_str()))
        .collect();
    let places: BTreeMap<u64, usize> = code.iter().enumerate().map(|(i, c)| (c.0, i)).collect();
    let back = |i: usize| {
        let (at, text) = code[i];
        let to = address(&jump.captures(text)?[1]);
        places.get(&to).copied().filter(|_| to < at)
    };
    let is_innermost = |from: usize, end: usize| (from..end).all(|i| back(i).is_none());
    (0..code.len())
        .filter_map(|end| Some((back(end)?, end)))
        .filter(|(from, end)| is_innermost(*from, *end))
        .map(|(from, end)| {
            let body = &code[from..end];
            let count = |of: &Regex| body.iter().filter(|(_, text)| of.is_match(text)).count();
            Loop {
                end: code[end].0,
                products: count(&product),
                spills: count(&spill),
            }
        })
        .filter(|one| one.products >= LEAST_PRODUCTS)
        .collect()
}

/// Returns the code of all functions of these names in the program; `None` without objdump.
fn disassembled(names: &[&str]) -> Option<Vec<(String, String)>> {
    let program = env!("CARGO_BIN_EXE_octavo");
    let symbols = Command::new("nm")
        .args(["-S", "--demangle", program])
        .output()
        .ok()?;
    assert!(symbols.status.success(), "{symbols:?}");
    let symbols = String::from_utf8(symbols.stdout).expect("UTF-8");
    let mut functions = Vec::new();
    for line in symbols.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [start, size, _, name] = words[..] else {
            continue;
        };
        if !names.contains(&name) {
            continue;
        }
        let number = |text| u64::from_str_radix(text, 16).expect("a number");
        let code = Command::new("objdump")
            .args(["-d", "--no-show-raw-insn"])
            .arg(format!("--start-address={}", number(start)))
            .arg(format!("--stop-address={}", number(start) + number(size)))
            .arg(program)
            .output()
            .ok()?;
        let code = String::from_utf8(code.stdout).expect("UTF-8");
        functions.push((name.to_owned(), code));
    }
    Some(functions)
}

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn sums_of_prompts_tiles_stay_in_registers() {
    let Some(functions) = disassembled(&TILES) else {
        return skip(Lacks::System, "nm and objdump");
    };
    for name in TILES {
        let of_name = functions.iter().filter(|(of, _)| of == name);
        let all: Vec<Loop> = of_name.flat_map(|(_, code)| loops(code)).collect();
        assert!(!all.is_empty(), "{name}: no loop of products");
        for one in all {
            let Loop { end, products, .. } = one;
            assert_eq!(one.spills, 0, "{name}: {products} products up to {end:#x}");
        }
    }
}

#[test]
fn a_loop_that_spills_is_found() {
    let product = "  10:\tvfmadd231ps (%rax),%zmm1,%zmm2\n".repeat(LEAST_PRODUCTS - 1);
    let code = format!(
        "   8:\tvfmadd231ps (%rax),%zmm1,%zmm2\n{product}  \
         18:\tvmovaps %zmm2,0x40(%rsp)\n  1c:\tjne    8 <f+0x8>\n  20:\tjmp    8 <f+0x8>\n"
    );
    let found = loops(&code);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].products, found[0].spills), (LEAST_PRODUCTS, 1));
}
