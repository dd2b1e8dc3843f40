//! Executes x86-64 instructions, which iced-x86 decodes, with expressions as values.
//!
//! Every load counts as an acquire load, because x86-64 never reorders a load with later accesses. It may reorder a
//! store with a later load, but no sequence has a store followed by a load.

use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter, Mnemonic, OpKind, Register};

use super::expression::{Atom, Expression};
use super::machine::{Machine, Relation};
use super::step::{Fault, Next, Step};

/// Names of the general registers, by number.
const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// Executes the first instruction in `code`, whose address is `at`.
pub(super) fn step(machine: &mut Machine, at: u64, code: &[u8]) -> Result<Step, Fault> {
    let decoded = Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
    let text = text_of(&decoded);
    if decoded.is_invalid() {
        return Err(Fault::new(at, &text, "is not an instruction"));
    }
    match execute(machine, &decoded) {
        Ok(next) => Ok(Step { text, bytes: decoded.len() as u64, next }),
        Err(what) => Err(Fault::new(at, &text, what)),
    }
}

fn text_of(decoded: &Instruction) -> String {
    let (mut formatter, mut text) = (IntelFormatter::new(), String::new());
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    formatter.format(decoded, &mut text);
    text
}

fn execute(machine: &mut Machine, decoded: &Instruction) -> Result<Next, String> {
    if decoded.has_lock_prefix() || decoded.has_rep_prefix() || decoded.has_repne_prefix() {
        return Err("has a prefix that no sequence may contain".to_owned());
    }
    match decoded.mnemonic() {
        Mnemonic::Mov => {
            let value = read(machine, decoded, 1)?;
            write(machine, decoded, value)?;
        }
        Mnemonic::Lea => {
            let (register, bytes) = name(decoded.op0_register())?;
            let value = offset(machine, decoded)?.low(bytes);
            machine.set_register(register, value);
        }
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::And => {
            if decoded.op0_kind() != OpKind::Register {
                return Err("changes memory, which a sequence may only load or store".to_owned());
            }
            let (left, right) = (read(machine, decoded, 0)?, read(machine, decoded, 1)?);
            calculate(machine, decoded, &left, &right)?;
        }
        Mnemonic::Cmp => {
            let (left, right) = (read(machine, decoded, 0)?, read(machine, decoded, 1)?);
            machine.compare(left, right);
        }
        Mnemonic::Test => {
            let value = read(machine, decoded, 0)?.and(&read(machine, decoded, 1)?);
            machine.test(value);
        }
        Mnemonic::Jmp if decoded.op0_kind() == OpKind::NearBranch64 => {
            return Ok(Next::Jumps(decoded.near_branch_target()));
        }
        other => {
            let relation =
                relation(other).ok_or("is of a kind that no sequence may contain, or that is not known")?;
            return Ok(Next::BranchesIf(relation, decoded.near_branch_target()));
        }
    }
    Ok(Next::Follows)
}

/// Computes a sum, difference or conjunction. The flags of a sum describe no comparison.
fn calculate(
    machine: &mut Machine,
    decoded: &Instruction,
    left: &Expression,
    right: &Expression,
) -> Result<(), String> {
    let (_, bytes) = name(decoded.op0_register())?;
    let result = match decoded.mnemonic() {
        Mnemonic::Add => left.plus(right),
        Mnemonic::Sub => left.minus(right),
        _ => left.and(right),
    };
    let result = result.low(bytes);
    match decoded.mnemonic() {
        Mnemonic::Add => machine.set_flags_unknown(),
        Mnemonic::Sub => machine.compare(left.clone(), right.clone()),
        _ => machine.test(result.clone()),
    }
    write(machine, decoded, result)
}

fn relation(mnemonic: Mnemonic) -> Option<Relation> {
    Some(match mnemonic {
        Mnemonic::Je => Relation::Equal,
        Mnemonic::Jne => Relation::NotEqual,
        Mnemonic::Jae => Relation::AtLeast,
        Mnemonic::Jb => Relation::Below,
        Mnemonic::Ja => Relation::Above,
        Mnemonic::Jbe => Relation::AtMost,
        _ => return None,
    })
}

/// Returns a register's name, and the width of the part that is used, in bytes.
fn name(register: Register) -> Result<(&'static str, u32), String> {
    match register {
        _ if register.is_gpr64() => Ok((NAMES[register.number()], 8)),
        _ if register.is_gpr32() => Ok((NAMES[register.number()], 4)),
        _ => Err(format!("uses the register {register:?}, which no sequence may")),
    }
}

fn memory_bytes(decoded: &Instruction) -> Result<u32, String> {
    match decoded.memory_size().size() {
        4 => Ok(4),
        8 => Ok(8),
        other => Err(format!("accesses {other} bytes of memory, not 4 or 8")),
    }
}

/// Returns the width of the instruction's operands, in bytes.
fn width(decoded: &Instruction) -> Result<u32, String> {
    match decoded.op0_kind() {
        OpKind::Register => name(decoded.op0_register()).map(|(_, bytes)| bytes),
        _ => memory_bytes(decoded),
    }
}

fn read(machine: &mut Machine, decoded: &Instruction, operand: u32) -> Result<Expression, String> {
    match decoded.op_kind(operand) {
        OpKind::Register => {
            let (register, bytes) = name(decoded.op_register(operand))?;
            Ok(machine.register(register).low(bytes))
        }
        OpKind::Memory => {
            let (bytes, address) = (memory_bytes(decoded)?, address(machine, decoded)?);
            Ok(machine.load(bytes, address, true))
        }
        OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => {
            Ok(Expression::constant(decoded.immediate(operand)).low(width(decoded)?))
        }
        other => Err(format!("has an operand of the kind {other:?}")),
    }
}

/// Writes the first operand.
fn write(machine: &mut Machine, decoded: &Instruction, value: Expression) -> Result<(), String> {
    match decoded.op0_kind() {
        OpKind::Register => {
            let (register, bytes) = name(decoded.op0_register())?;
            machine.set_register(register, value.low(bytes));
        }
        OpKind::Memory => {
            let (bytes, address) = (memory_bytes(decoded)?, address(machine, decoded)?);
            machine.store(bytes, address, value.low(bytes));
        }
        other => return Err(format!("writes an operand of the kind {other:?}")),
    }
    Ok(())
}

/// Returns the address of the memory operand. The segment `fs` begins at the thread's own data.
fn address(machine: &Machine, decoded: &Instruction) -> Result<Expression, String> {
    let offset = offset(machine, decoded)?;
    match decoded.segment_prefix() {
        Register::None => Ok(offset),
        Register::FS => Ok(offset.plus(&Expression::of(Atom::ThreadPointer))),
        other => Err(format!("uses the segment {other:?}")),
    }
}

/// Returns the offset of the memory operand in its segment.
fn offset(machine: &Machine, decoded: &Instruction) -> Result<Expression, String> {
    // The displacement of such an operand is the address itself.
    let mut offset = Expression::constant(decoded.memory_displacement64());
    if decoded.is_ip_rel_memory_operand() {
        return Ok(offset);
    }
    let parts = [(decoded.memory_base(), 1), (decoded.memory_index(), decoded.memory_index_scale())];
    for (register, scale) in parts.into_iter().filter(|&(register, _)| register != Register::None) {
        let (register, bytes) = name(register)?;
        if bytes != 8 {
            return Err("computes an address of 32 bits".to_owned());
        }
        offset = offset.plus(&machine.register(register).times(u64::from(scale)));
    }
    Ok(offset)
}
