//! Interning: values used by filters, as small reference-counted numbers. Values of events are looked up and never
//! stored.

use std::hash::{BuildHasher, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};
use tocsin_model::value::Value;

/// The value of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atom<'a> {
    /// Text, or bytes at the start or the end of one.
    Text(&'a [u8]),
    /// A number, a boolean, a timestamp or null: the type, and its bits.
    Word(u8, u64),
    /// The first address of a network.
    Address(u128),
}

impl<'a> Atom<'a> {
    /// The atom of a value; equal values have equal atoms. `None` for lists and maps, and for NaN.
    pub fn of(value: &'a Value) -> Option<Atom<'a>> {
        Some(match value {
            Value::Text(text) => Atom::Text(text.as_bytes()),
            Value::Null => Atom::Word(0, 0),
            Value::Boolean(value) => Atom::Word(1, u64::from(*value)),
            Value::Integer(value) => Atom::Word(2, *value as u64),
            Value::Number(value) if value.is_nan() => return None,
            // As an integer, where it is integral.
            Value::Number(value)
                if value.trunc() == *value
                    && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(value) =>
            {
                Atom::Word(2, *value as i64 as u64)
            }
            Value::Number(value) => Atom::Word(3, value.to_bits()),
            Value::Timestamp(time) => Atom::Word(4, time.0 as u64),
            Value::List(_) | Value::Map(_) => return None,
        })
    }
}

/// No symbol.
pub const NONE: u32 = 0;

/// The symbols in use. Their numbers start at 1 and are reused.
#[derive(Debug, Default)]
pub struct Symbols {
    table: HashTable<Slot>,
    hasher: DefaultHashBuilder,
    /// By symbol, to find its slot again.
    hashes: Vec<u64>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    name: Name,
    symbol: u32,
    uses: u32,
}

/// A stored atom. A short text is stored inline, which saves a memory access per lookup.
#[derive(Debug)]
enum Name {
    Short(u8, [u8; 22]),
    Long(Box<[u8]>),
    Word(u8, u64),
    Address([u8; 16]),
}

impl Name {
    fn of(atom: Atom<'_>) -> Name {
        match atom {
            Atom::Text(text) => {
                let mut short = [0; 22];
                match short.get_mut(..text.len()) {
                    Some(place) => {
                        place.copy_from_slice(text);
                        Name::Short(text.len() as u8, short)
                    }
                    None => Name::Long(text.into()),
                }
            }
            Atom::Word(kind, word) => Name::Word(kind, word),
            Atom::Address(address) => Name::Address(address.to_ne_bytes()),
        }
    }

    fn is(&self, atom: Atom<'_>) -> bool {
        match (self, atom) {
            (Name::Short(length, short), Atom::Text(text)) => short[..usize::from(*length)] == *text,
            (Name::Long(long), Atom::Text(text)) => **long == *text,
            (Name::Word(kind, word), Atom::Word(other_kind, other)) => *kind == other_kind && *word == other,
            (Name::Address(address), Atom::Address(other)) => *address == other.to_ne_bytes(),
            _ => false,
        }
    }
}

impl Symbols {
    fn hash(&self, atom: Atom<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        match atom {
            Atom::Text(text) => hasher.write(text),
            Atom::Word(kind, word) => hasher.write_u64(word ^ u64::from(kind) << 61),
            Atom::Address(address) => hasher.write_u128(address),
        }
        hasher.finish()
    }

    /// The symbol of an atom that some filter uses, else [`NONE`].
    pub fn find(&self, atom: Atom<'_>) -> u32 {
        self.table.find(self.hash(atom), |slot| slot.name.is(atom)).map_or(NONE, |slot| slot.symbol)
    }

    /// The symbol of an atom, kept until it is released as often as it was acquired.
    pub fn acquire(&mut self, atom: Atom<'_>) -> u32 {
        let hash = self.hash(atom);
        if let Some(slot) = self.table.find_mut(hash, |slot| slot.name.is(atom)) {
            slot.uses += 1;
            return slot.symbol;
        }
        let symbol = match self.free.pop() {
            Some(symbol) => {
                self.hashes[symbol as usize - 1] = hash;
                symbol
            }
            None => {
                self.hashes.push(hash);
                u32::try_from(self.hashes.len()).expect("fewer than 2^32 values are in use")
            }
        };
        let hashes = &self.hashes;
        self.table.insert_unique(hash, Slot { name: Name::of(atom), symbol, uses: 1 }, |slot| {
            hashes[slot.symbol as usize - 1]
        });
        symbol
    }

    /// Adds one use of a symbol that is in use.
    pub fn acquire_again(&mut self, symbol: u32) {
        let hash = self.hashes[symbol as usize - 1];
        if let Some(slot) = self.table.find_mut(hash, |slot| slot.symbol == symbol) {
            slot.uses += 1;
        }
    }

    /// Releases one use.
    pub fn release(&mut self, symbol: u32) {
        let Some(hash) = self.hashes.get((symbol as usize).wrapping_sub(1)) else { return };
        let Ok(mut found) = self.table.find_entry(*hash, |slot| slot.symbol == symbol) else { return };
        found.get_mut().uses -= 1;
        if found.get().uses == 0 {
            found.remove();
            self.free.push(symbol);
        }
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let long: usize = self
            .table
            .iter()
            .map(|slot| match &slot.name {
                Name::Long(text) => text.len() + 16,
                _ => 0,
            })
            .sum();
        self.table.allocation_size() + self.hashes.capacity() * 8 + self.free.capacity() * 4 + long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_is_removed_with_its_last_use() {
        let mut symbols = Symbols::default();
        let long = "a text that is longer than an inline one".to_owned();
        let values = [
            Value::from("a"),
            Value::from(""),
            Value::from(&*long),
            7_i64.into(),
            7.5.into(),
            Value::Null,
            true.into(),
        ];
        let numbers: Vec<u32> =
            values.iter().map(|value| symbols.acquire(Atom::of(value).expect("a scalar"))).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(symbols.acquire(Atom::Text(b"a")), 1);
        assert_eq!(symbols.find(Atom::of(&Value::Number(7.0)).expect("a number")), 4, "equal numbers share a symbol");
        assert_eq!(symbols.find(Atom::Address(7)), NONE);
        symbols.release(1);
        assert_eq!(symbols.find(Atom::Text(b"a")), 1);
        symbols.release(1);
        assert_eq!(symbols.find(Atom::Text(b"a")), NONE);
        assert_eq!(symbols.acquire(Atom::Address(7)), 1, "numbers are reused");
        assert_eq!(symbols.table.len(), 7);
    }
}
