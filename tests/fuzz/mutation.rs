//! Mutations: an input of the corpus with a few changes of the kinds that break parsers.

/// The longest input.
const LONGEST: usize = 16 * 1024;
/// Values at the edges of what bytes and text can be.
const EDGES: [u8; 16] = [0, 1, 9, 10, 13, 32, 34, 44, 58, 92, 0x7b, 0x7d, 0x7f, 0x80, 0xc0, 0xff];
/// Pieces that mean something to one of the targets.
const PIECES: [&str; 50] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "\\ud800",
    "\\",
    "null",
    "-0",
    "1e999",
    "1.0",
    "18446744073709551616",
    ",",
    ":",
    "\"id\":1,",
    "\"jsonrpc\":\"2.0\",",
    "\"method\":\"ping\",",
    "\"params\":{},",
    "\n\n",
    "\r\n",
    "\r",
    "data: ",
    "id: ",
    "event: message\n",
    "retry: 1\n",
    ":\n",
    "\u{feff}",
    "=?base64?",
    "?=",
    "q=0",
    "*/*",
    "${",
    "}",
    "{file: x}",
    "  ",
    "- ",
    "*a",
    "&a ",
    "for=\"[::1]:80\", ",
    "arguments.",
    "principal",
    "size(",
    " && ",
    " == ",
    ".exists(x, x",
    " in [",
    " ? ",
    "!(",
    ".a",
];

/// Makes inputs from a seed: the same seed, the same inputs.
pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        // The generator stands still at zero.
        Self(seed | 1)
    }

    /// xorshift64*: good enough to choose, and without a dependency.
    fn random(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below that one; 0 below 0 and 1.
    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap();
        usize::try_from((self.random() >> 8) % limit).unwrap()
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let index = self.below(all.len());
        all.get(index).expect("something to choose from")
    }

    /// The next input.
    pub(crate) fn next(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.one_of(corpus).clone();
        for _ in 0..=self.below(8) {
            self.change(&mut input, corpus);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = (at + self.below(16)).min(input.len());
        match self.below(9) {
            0 => self.flip(input),
            1 => {
                let byte = *self.one_of(&EDGES);
                input.insert(at, byte);
            }
            2 => drop(input.drain(at..end)),
            3 => insert(input, at, self.one_of(&PIECES).as_bytes()),
            4 => {
                let piece = input.drain(at..end).collect::<Vec<u8>>();
                let to = self.below(input.len() + 1);
                insert(input, to, &piece);
            }
            5 => {
                let piece = input.get(at..end).unwrap_or_default().repeat(1 + self.below(40));
                insert(input, at, &piece);
            }
            6 => {
                let other = self.one_of(corpus);
                let from = self.below(other.len() + 1);
                let to = (from + self.below(64)).min(other.len());
                insert(input, at, other.get(from..to).unwrap_or_default());
            }
            7 => input.truncate(at),
            _ => {
                let byte = u8::try_from(self.below(256)).unwrap();
                if let Some(place) = input.get_mut(at) {
                    *place = byte;
                }
            }
        }
    }

    fn flip(&mut self, input: &mut [u8]) {
        let (at, bit) = (self.below(input.len()), self.below(8));
        if let Some(byte) = input.get_mut(at) {
            *byte ^= 1 << bit;
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    drop(input.splice(at..at, piece.iter().copied()));
}
