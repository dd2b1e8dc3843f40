//! Decodes aarch64 instructions with yaxpeax-arm.

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction as Decoded, Opcode, Operand, ShiftStyle, SizeCode};

use super::{Action, Instruction, Memory, Register, Way};

const ZERO: u16 = 31;

pub(super) fn decode(address: u64, code: &[u8]) -> Vec<Instruction> {
    let at = |(word, bytes): (usize, &[u8])| {
        let decoded = InstDecoder::default().decode(&mut U8Reader::new(bytes));
        let address = address + 4 * word as u64;
        read(address, &decoded.unwrap_or_else(|error| panic!("no instruction at {address:#x}: {error}")))
    };
    code.chunks_exact(4).enumerate().map(at).collect()
}

fn read(address: u64, decoded: &Decoded) -> Instruction {
    let text = format!("{address:#x}: {decoded}");
    let nothing = |reads, writes, sets_flags| (reads, writes, sets_flags, Action::Nothing);
    let (reads, writes, sets_flags, action) = match decoded.opcode {
        Opcode::LDR | Opcode::LDAR => {
            let way = if decoded.opcode == Opcode::LDAR { Way::LoadAcquire } else { Way::Load };
            let (to, bytes) = register(decoded.operands[0]).expect("a register");
            (vec![], vec![to], false, Action::Accesses(memory(way, bytes, decoded.operands[1])))
        }
        Opcode::STR => {
            let (from, bytes) = register(decoded.operands[0]).expect("a register");
            (vec![from], vec![], false, Action::Accesses(memory(Way::Store, bytes, decoded.operands[1])))
        }
        Opcode::Bcc(_) => {
            let Operand::PCOffset(offset) = decoded.operands[0] else { panic!("a branch to where? {text}") };
            (vec![], vec![], false, Action::Branches(address.wrapping_add_signed(offset)))
        }
        // The first operand is the result. In a comparison it is the zero register.
        Opcode::ADD | Opcode::SUB | Opcode::AND | Opcode::ORR | Opcode::MOVZ | Opcode::MOVN => {
            nothing(registers(&decoded.operands[1..]), registers(&decoded.operands[..1]), false)
        }
        Opcode::ADDS | Opcode::SUBS | Opcode::ANDS => {
            nothing(registers(&decoded.operands[1..]), registers(&decoded.operands[..1]), true)
        }
        _ => panic!("an instruction that no sequence had yet: {text}"),
    };
    Instruction { text, reads, writes, sets_flags, action }
}

/// Returns the number of a register, and the size in bytes of the part used.
fn register(operand: Operand) -> Option<(Register, usize)> {
    let bytes = |size| if size == SizeCode::X { 8 } else { 4 };
    match operand {
        Operand::Register(size, number)
        | Operand::RegisterOrSP(size, number)
        | Operand::RegShift(_, _, size, number) => Some((Register::from(number), bytes(size))),
        _ => None,
    }
}

fn registers(operands: &[Operand]) -> Vec<Register> {
    let named = operands.iter().filter_map(|&operand| register(operand)).map(|(number, _)| number);
    named.filter(|&number| number != Register::from(ZERO)).collect()
}

fn memory(way: Way, bytes: usize, operand: Operand) -> Memory {
    let (base, index, offset) = match operand {
        Operand::RegPreIndex(base, offset, false) => (base, None, i64::from(offset)),
        Operand::RegRegOffset(base, index, SizeCode::X, ShiftStyle::LSL, shift) => {
            (base, Some((Register::from(index), 1 << shift)), 0)
        }
        other => panic!("an address that no sequence had yet: {other:?}"),
    };
    Memory { way, bytes, in_thread: false, base: Register::from(base), index, offset }
}
