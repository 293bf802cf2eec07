//! Device rules as an eBPF program, for [`DeviceFilter`](cwasi_sys::device_filter::DeviceFilter). Pure.
//!
//! Rules apply in order. For each of read, write and mknod, the last rule that covers an access decides, as in the
//! devices controller of cgroup v1 and in the OCI specification.

/// Reading a device; accesses are added.
pub const READ: u32 = 2;
pub const WRITE: u32 = 4;
/// Making it with mknod.
pub const MKNOD: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DeviceKind {
    Block = 1,
    Char = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRule {
    pub allow: bool,
    pub kind: DeviceKind,
    /// With this major number; `None` = any.
    pub major: Option<u32>,
    /// With this minor number; `None` = any.
    pub minor: Option<u32>,
    /// The accesses that it covers: [`READ`], [`WRITE`] and [`MKNOD`].
    pub access: u32,
}

/// Instructions for the kernel, which reads `struct bpf_insn`s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterProgram(Vec<u8>);

// Opcodes: class, operation, source.
const LOAD_WORD: u8 = 0x61;
const AND_32: u8 = 0x54;
const SHIFT_RIGHT_32: u8 = 0x74;
const MOVE_32: u8 = 0xb4;
const JUMP: u8 = 0x05;
const JUMP_IF_NOT: u8 = 0x55;
const JUMP_IF_BITS: u8 = 0x45;
const EXIT: u8 = 0x95;

// Registers: the result; the context; from that kind, access that is not decided yet, major and minor.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

impl FilterProgram {
    /// The program of `rules`; `default` applies to accesses that no rule covers.
    #[must_use]
    pub fn new(default: bool, rules: &[DeviceRule]) -> Self {
        let mut program = Self(Vec::new());
        // struct bpf_cgroup_dev_ctx { u32 access_type; u32 major; u32 minor; }
        program.load(KIND, 0).push(AND_32, KIND, 0, 0xffff);
        program.load(ACCESS, 0).push(SHIFT_RIGHT_32, ACCESS, 0, 16);
        program.load(MAJOR, 4).load(MINOR, 8);
        // The last rule that matches decides, so it is asked first.
        rules.iter().rev().for_each(|rule| program.rule(rule));
        program.exit(default);
        program
    }

    /// As the kernel reads them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn rule(&mut self, rule: &DeviceRule) {
        let access = rule.access.cast_signed();
        let mut body = Self(Vec::new());
        if rule.allow {
            // Accesses that this rule does not cover are left to earlier rules.
            body.push(AND_32, ACCESS, 0, !access).push(JUMP_IF_NOT, ACCESS, 2, 0).exit(true);
        } else {
            body.push(JUMP_IF_BITS, ACCESS, 1, access).push(JUMP, 0, 2, 0).exit(false);
        }
        let numbers = [(MINOR, rule.minor), (MAJOR, rule.major), (KIND, Some(rule.kind as u32))];
        // From the end: each test jumps over all that follows it.
        for (register, wanted) in numbers {
            if let Some(wanted) = wanted {
                let over = i16::try_from(body.0.len() / 8).expect("seven instructions at most");
                let mut tested = Self(Vec::new());
                tested.push(JUMP_IF_NOT, register, over, wanted.cast_signed());
                tested.0.append(&mut body.0);
                body = tested;
            }
        }
        self.0.append(&mut body.0);
    }

    fn load(&mut self, register: u8, offset: i16) -> &mut Self {
        self.push(LOAD_WORD, register | CONTEXT << 4, offset, 0)
    }

    fn exit(&mut self, result: bool) {
        self.push(MOVE_32, RESULT, 0, i32::from(result)).push(EXIT, 0, 0, 0);
    }

    /// One instruction of eight bytes.
    fn push(&mut self, code: u8, registers: u8, offset: i16, immediate: i32) -> &mut Self {
        self.0.extend([code, registers]);
        self.0.extend(offset.to_ne_bytes());
        self.0.extend(immediate.to_ne_bytes());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// What the program says, run by an interpreter.
    fn says(
        program: &FilterProgram,
        kind: DeviceKind,
        major: u32,
        minor: u32,
        access: u32,
    ) -> bool {
        let context = [access << 16 | kind as u32, major, minor];
        let mut context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let machine = rbpf::EbpfVmRaw::new(Some(program.bytes())).unwrap();
        machine.execute_program(&mut context).unwrap() == 1
    }

    /// The same by the words of the specification.
    fn means(
        default: bool,
        rules: &[DeviceRule],
        kind: DeviceKind,
        numbers: (u32, u32),
        access: u32,
    ) -> bool {
        [READ, WRITE, MKNOD].into_iter().filter(|bit| access & bit != 0).all(|bit| {
            let speaks = |rule: &&DeviceRule| {
                rule.kind == kind
                    && rule.major.is_none_or(|major| major == numbers.0)
                    && rule.minor.is_none_or(|minor| minor == numbers.1)
                    && rule.access & bit != 0
            };
            rules.iter().rev().find(speaks).map_or(default, |rule| rule.allow)
        })
    }

    fn kinds() -> impl Strategy<Value = DeviceKind> {
        prop_oneof![Just(DeviceKind::Block), Just(DeviceKind::Char)]
    }

    fn rules() -> impl Strategy<Value = DeviceRule> {
        let number = || proptest::option::of(0..3_u32);
        (any::<bool>(), kinds(), number(), number(), 0..8_u32).prop_map(
            |(allow, kind, major, minor, access)| DeviceRule { allow, kind, major, minor, access },
        )
    }

    proptest! {
        #[test]
        fn the_program_says_what_the_rules_mean(
            default: bool,
            rules in vec(rules(), 0..12),
            kind in kinds(),
            numbers in (0..4_u32, 0..4_u32),
            access in 1..8_u32,
        ) {
            let program = FilterProgram::new(default, &rules);
            let said = says(&program, kind, numbers.0, numbers.1, access);
            prop_assert_eq!(said, means(default, &rules, kind, numbers, access));
        }
    }

    #[test]
    fn large_numbers_are_compared_whole() {
        let rule = |major| DeviceRule {
            allow: true,
            kind: DeviceKind::Char,
            major: Some(major),
            minor: None,
            access: READ,
        };
        let program = FilterProgram::new(false, &[rule(u32::MAX)]);
        assert!(!says(&program, DeviceKind::Char, 0xffff, 0, READ));
        let program = FilterProgram::new(false, &[rule(511)]);
        assert!(says(&program, DeviceKind::Char, 511, 9, READ));
        assert!(!says(&program, DeviceKind::Char, 511, 9, READ | WRITE));
    }
}
