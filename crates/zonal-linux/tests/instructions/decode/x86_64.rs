//! Decodes x86-64 instructions with iced-x86. Every load counts as an acquire load, because x86-64 never reorders a
//! load with later accesses. It may reorder a store with a later load, but no sequence has a store followed by a
//! load.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, Instruction as Decoded, InstructionInfoFactory,
    IntelFormatter, OpAccess, Register as Name, UsedMemory,
};

use super::{Action, Instruction, Memory, Register, Way};

pub(super) fn decode(address: u64, code: &[u8]) -> Vec<Instruction> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE).iter().map(|decoded| read(&decoded)).collect()
}

fn number(name: Name) -> Register {
    name.full_register() as Register
}

fn read(decoded: &Decoded) -> Instruction {
    assert!(!decoded.is_invalid(), "no instruction at {:#x}", decoded.ip());
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(decoded);
    let mut text = format!("{:#x}: ", decoded.ip());
    IntelFormatter::new().format(decoded, &mut text);
    let accesses: Vec<&UsedMemory> =
        info.used_memory().iter().filter(|memory| memory.access() != OpAccess::NoMemAccess).collect();
    assert!(accesses.len() <= 1, "several accesses: {text}");
    let memory = accesses.first().map(|memory| access(decoded, memory));
    let is_address = |name: Name| decoded.memory_base() == name || decoded.memory_index() == name;
    let mut instruction = Instruction {
        text,
        reads: Vec::new(),
        writes: Vec::new(),
        sets_flags: decoded.rflags_modified() != 0,
        action: memory.map_or(Action::Nothing, Action::Accesses),
    };
    for used in info.used_registers().iter().filter(|used| used.register() != Name::FS) {
        let (reads, writes) = match used.access() {
            OpAccess::Read => (true, false),
            OpAccess::Write => (false, true),
            OpAccess::ReadWrite => (true, true),
            other => panic!("{other:?} of a register: {}", instruction.text),
        };
        if reads && !is_address(used.register()) {
            instruction.reads.push(number(used.register()));
        }
        if writes {
            instruction.writes.push(number(used.register()));
        }
    }
    match decoded.flow_control() {
        FlowControl::Next => {}
        FlowControl::ConditionalBranch => instruction.action = Action::Branches(decoded.near_branch_target()),
        other => panic!("{other:?}: {}", instruction.text),
    }
    instruction
}

fn access(decoded: &Decoded, memory: &UsedMemory) -> Memory {
    let way = match memory.access() {
        OpAccess::Read => Way::LoadAcquire,
        OpAccess::Write => Way::Store,
        other => panic!("{other:?} of memory: {:?}", decoded.code()),
    };
    let index = (memory.index() != Name::None).then(|| (number(memory.index()), memory.scale()));
    Memory {
        way,
        bytes: memory.memory_size().size(),
        in_thread: memory.segment() == Name::FS,
        base: number(memory.base()),
        index,
        offset: memory.displacement().cast_signed(),
    }
}
