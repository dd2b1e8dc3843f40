//! Executes aarch64 instructions, which yaxpeax-arm decodes, with expressions as values.
//!
//! Only `ldar` counts as an acquire load.

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction, Opcode, Operand, ShiftStyle, SizeCode};

use super::expression::{Atom, Expression};
use super::machine::{Machine, Relation};
use super::step::{Fault, Next, Step};

/// Bytes of an instruction.
pub(super) const INSTRUCTION_BYTES: u64 = 4;
/// Names of the general registers, by number.
const NAMES: [&str; 31] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
    "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
];
/// The decoder's number of the system register `tpidr_el0`.
const TPIDR_EL0: u16 = 0x5e82;
/// Bytes of the pages that `adrp` computes with.
const PAGE_BYTES: u64 = 4096;
/// The instruction `nop`.
const NOP: u32 = 0xd503_201f;
/// The opcode of `adr`, and the bits that contain it.
const ADR: u32 = 0x1000_0000;
const ADR_OPCODE: u32 = 0x9f00_0000;

/// Whether the code begins with `nop` and `adr`, by which lld replaces an `adrp` and `add` of a near address.
pub(super) fn is_relaxed(code: &[u8]) -> bool {
    let mut words = code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    words.next() == Some(NOP) && words.next().is_some_and(|word| word & ADR_OPCODE == ADR)
}

/// Executes the first instruction in `code`, whose address is `at`.
pub(super) fn step(machine: &mut Machine, at: u64, code: &[u8]) -> Result<Step, Fault> {
    let decoded = InstDecoder::default().decode(&mut U8Reader::new(code));
    let decoded = decoded
        .map_err(|error| Fault::new(at, &format!("{code:02x?}"), format!("is no instruction: {error}")))?;
    let text = decoded.to_string();
    match execute(machine, at, &decoded) {
        Ok(next) => Ok(Step { text, bytes: INSTRUCTION_BYTES, next }),
        Err(what) => Err(Fault::new(at, &text, what)),
    }
}

fn execute(machine: &mut Machine, at: u64, decoded: &Instruction) -> Result<Next, String> {
    let [first, second, third, _] = decoded.operands;
    match decoded.opcode {
        Opcode::LDR | Opcode::LDAR => {
            let (bytes, address) = (width(first)?, address(machine, second)?);
            let value = machine.load(bytes, address, decoded.opcode == Opcode::LDAR);
            write(machine, first, value)?;
        }
        Opcode::STR => {
            let (bytes, address, value) = (width(first)?, address(machine, second)?, read(machine, first)?);
            machine.store(bytes, address, value);
        }
        Opcode::ADD | Opcode::SUB | Opcode::AND | Opcode::ADDS | Opcode::SUBS | Opcode::ANDS => {
            let (left, right) = (read(machine, second)?, read(machine, third)?.low(width(first)?));
            calculate(machine, decoded.opcode, first, &left, &right)?;
        }
        // `mov` between registers or of a mask is a disjunction with zero.
        Opcode::ORR if second == Operand::Register(SizeCode::X, 31) => {
            let value = read(machine, third)?;
            write(machine, first, value)?;
        }
        Opcode::MOVZ => {
            let value = read(machine, second)?;
            write(machine, first, value)?;
        }
        Opcode::MOVN => {
            let inverted = read(machine, second)?.as_constant().ok_or("moves no constant")?;
            write(machine, first, Expression::constant(!inverted))?;
        }
        Opcode::MRS if second == Operand::SystemReg(TPIDR_EL0) => {
            write(machine, first, Expression::of(Atom::ThreadPointer))?;
        }
        Opcode::ADR => write(machine, first, Expression::constant(target(at, second)?))?,
        Opcode::ADRP => write(machine, first, Expression::constant(target(at & !(PAGE_BYTES - 1), second)?))?,
        Opcode::B => return Ok(Next::Jumps(target(at, first)?)),
        Opcode::Bcc(condition) => {
            let relation = relation(condition).ok_or("branches on a condition that no sequence may use")?;
            return Ok(Next::BranchesIf(relation, target(at, first)?));
        }
        _ => return Err("is of a kind that no sequence may contain, or that is not known".to_owned()),
    }
    Ok(Next::Follows)
}

/// Computes a sum, difference or conjunction, and sets the flags if the instruction does.
fn calculate(
    machine: &mut Machine,
    opcode: Opcode,
    to: Operand,
    left: &Expression,
    right: &Expression,
) -> Result<(), String> {
    let bytes = width(to)?;
    let result = match opcode {
        Opcode::ADD | Opcode::ADDS => left.plus(right),
        Opcode::SUB | Opcode::SUBS => left.minus(right),
        _ => left.and(right),
    };
    let result = result.low(bytes);
    match (opcode, right.as_constant()) {
        // The addition of a constant sets the flags that the relations use like a comparison with its negation.
        (Opcode::ADDS, Some(constant)) if constant != 0 => {
            machine.compare(left.clone(), Expression::constant(constant.wrapping_neg()).low(bytes));
        }
        (Opcode::ADDS, _) => machine.set_flags_unknown(),
        (Opcode::SUBS, _) => machine.compare(left.clone(), right.clone()),
        (Opcode::ANDS, _) => machine.test(result.clone()),
        _ => {}
    }
    write(machine, to, result)
}

fn relation(condition: u8) -> Option<Relation> {
    Some(match condition {
        0 => Relation::Equal,
        1 => Relation::NotEqual,
        2 => Relation::AtLeast,
        3 => Relation::Below,
        8 => Relation::Above,
        9 => Relation::AtMost,
        _ => return None,
    })
}

fn target(base: u64, operand: Operand) -> Result<u64, String> {
    match operand {
        Operand::PCOffset(offset) => Ok(base.wrapping_add_signed(offset)),
        other => Err(format!("has the operand {other:?}, which is no distance")),
    }
}

/// Returns the width of a register operand, in bytes.
fn width(operand: Operand) -> Result<u32, String> {
    match operand {
        Operand::Register(size, _) | Operand::RegisterOrSP(size, _) | Operand::RegShift(_, _, size, _) => {
            Ok(if size == SizeCode::X { 8 } else { 4 })
        }
        other => Err(format!("has the operand {other:?}, which is no general register")),
    }
}

/// Returns the whole value of a register. Register 31 is the stack pointer or zero.
fn register(machine: &Machine, number: u16, is_stack_pointer: bool) -> Expression {
    match NAMES.get(usize::from(number)) {
        Some(name) => machine.register(name),
        None if is_stack_pointer => machine.register("sp"),
        None => Expression::constant(0),
    }
}

fn read(machine: &Machine, operand: Operand) -> Result<Expression, String> {
    match operand {
        Operand::Register(_, number) => Ok(register(machine, number, false).low(width(operand)?)),
        Operand::RegisterOrSP(_, number) => Ok(register(machine, number, true).low(width(operand)?)),
        Operand::RegShift(ShiftStyle::LSL, by, _, number) => {
            Ok(register(machine, number, false).low(width(operand)?).times(1 << by).low(width(operand)?))
        }
        Operand::Immediate(value) => Ok(Expression::constant(u64::from(value))),
        Operand::Imm16(value) => Ok(Expression::constant(u64::from(value))),
        Operand::Imm64(value) => Ok(Expression::constant(value)),
        Operand::ImmShift(value, by) => Ok(Expression::constant(u64::from(value) << by)),
        other => Err(format!("has the operand {other:?}, which no sequence may")),
    }
}

fn write(machine: &mut Machine, operand: Operand, value: Expression) -> Result<(), String> {
    let value = value.low(width(operand)?);
    match operand {
        Operand::Register(_, 31) => {}
        Operand::Register(_, number) | Operand::RegisterOrSP(_, number) => {
            let name = NAMES.get(usize::from(number)).ok_or("changes the stack pointer")?;
            machine.set_register(name, value);
        }
        other => return Err(format!("writes the operand {other:?}")),
    }
    Ok(())
}

fn address(machine: &Machine, operand: Operand) -> Result<Expression, String> {
    match operand {
        Operand::RegPreIndex(base, offset, false) => {
            Ok(register(machine, base, true).offset(i64::from(offset).cast_unsigned()))
        }
        Operand::RegRegOffset(base, index, SizeCode::X, ShiftStyle::LSL, by) => {
            let index = register(machine, index, false).times(1 << by);
            Ok(register(machine, base, true).plus(&index))
        }
        other => Err(format!("has the address {other:?}, which no sequence may")),
    }
}
