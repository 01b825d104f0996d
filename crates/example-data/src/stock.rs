//! Stock market example: quotes of 1,000 symbols, and orders that wait for a price, a change or a volume.
//!
//! All data follow from a seed by arithmetic that is deterministic on machines of one architecture, so that figures are
//! reproducible. Popular symbols have most orders (Zipf with exponent 0.8), and triggers are spread so that about 4 %
//! of the orders match a batch with one quote of every symbol. An order is a subscription; the application is
//! `examples/stock/application.yaml`.

use std::io::{self, Write};

/// Number of symbols.
pub const SYMBOLS: usize = 1_000;

/// Seed of the published figures.
pub const SEED: u64 = 0x5EED_2026;

/// Kind of order; each kind has a rule with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The price fell to the trigger or below.
    Stop,
    /// The price rose to the trigger or above.
    Limit,
    /// The price moved by the trigger or more, in hundredths of a percent, whichever way.
    Change,
    /// More shares than the trigger were traded.
    Volume,
}

impl Kind {
    /// Name in the application.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stop => "stop",
            Kind::Limit => "limit",
            Kind::Change => "change",
            Kind::Volume => "volume",
        }
    }
}

/// Order: the values of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Number of the owner: `u0` is 0.
    pub subscriber: u32,
    /// Index among the orders of the subscriber.
    pub place: u32,
    /// Index of the symbol: `S0000` is 0.
    pub symbol: u16,
    /// Kind.
    pub kind: Kind,
    /// Trigger in cents, hundredths of a percent or shares, by kind.
    pub trigger: i64,
}

impl Order {
    /// Whether a quote triggers the order: the application's rules, implemented independently for tests.
    pub fn is_met_by(&self, quote: &Quote) -> bool {
        self.symbol == quote.symbol
            && match self.kind {
                Kind::Stop => quote.price <= self.trigger,
                Kind::Limit => quote.price >= self.trigger,
                Kind::Change => quote.change >= self.trigger,
                Kind::Volume => quote.volume > self.trigger,
            }
    }
}

/// Quote: the values of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    /// Index of the symbol: `S0000` is 0.
    pub symbol: u16,
    /// Price in cents.
    pub price: i64,
    /// Absolute price change since the previous day, in hundredths of a percent.
    pub change: i64,
    /// Number of shares traded.
    pub volume: i64,
}

/// Market generated from one seed.
#[derive(Debug, Clone)]
pub struct Market {
    seed: u64,
    /// Base price in cents, by symbol.
    prices: Vec<f64>,
    /// Base volume, by symbol.
    volumes: Vec<f64>,
    /// Cumulative share of orders, by symbol.
    popularity: Vec<f64>,
}

impl Market {
    /// Creates the market of this seed.
    pub fn new(seed: u64) -> Self {
        let mut dice = SplitMix64::new(seed, 1);
        let prices = (0..SYMBOLS).map(|_| 500.0 + 20_000.0 * dice.exponential()).collect();
        let volumes = (0..SYMBOLS).map(|_| 1_000.0 + 50_000.0 * dice.exponential()).collect();
        let weights = (1..=SYMBOLS).map(|rank| (rank as f64).powf(-0.8));
        let mut popularity: Vec<f64> = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let all = popularity[SYMBOLS - 1];
        popularity.iter_mut().for_each(|sum| *sum /= all);
        Market { seed, prices, volumes, popularity }
    }

    /// Orders of subscribers `0..subscribers`, `orders_each` per subscriber, ordered by subscriber.
    pub fn orders(&self, subscribers: u32, orders_each: u32) -> impl Iterator<Item = Order> + '_ {
        let mut dice = SplitMix64::new(self.seed, 2);
        (0..subscribers).flat_map(move |subscriber| (0..orders_each).map(move |place| (subscriber, place))).map(
            move |(subscriber, place)| {
                let share = dice.fraction();
                let symbol = self.popularity.partition_point(|&sum| sum < share).min(SYMBOLS - 1);
                let (price, volume) = (self.prices[symbol], self.volumes[symbol]);
                let (kind, trigger) = match dice.below(4) {
                    0 => (Kind::Stop, (price * (1.0 - 0.20 * dice.fraction())).floor()),
                    1 => (Kind::Limit, (price * (1.0 + 0.20 * dice.fraction())).ceil()),
                    2 => (Kind::Change, (3_989.0 * dice.fraction()).ceil()),
                    _ => (Kind::Volume, (volume * 25.0 * dice.fraction()).floor()),
                };
                Order { subscriber, place, symbol: symbol as u16, kind, trigger: trigger as i64 }
            },
        )
    }

    /// Batch `number`: one quote of every symbol. Batches are independent of each other.
    pub fn quotes(&self, number: u64) -> Vec<Quote> {
        let mut dice = SplitMix64::new(self.seed, 100 + number);
        let quote = |symbol: usize| {
            let move_ = dice.normal();
            Quote {
                symbol: symbol as u16,
                price: (self.prices[symbol] * (1.0 + 0.02 * move_)).round().max(1.0) as i64,
                change: (200.0 * move_.abs()).round() as i64,
                volume: (self.volumes[symbol] * dice.exponential()).round() as i64,
            }
        };
        (0..SYMBOLS).map(quote).collect()
    }
}

/// Writes subscribers `u0`, `u1`, ... as NDJSON for the import. Each has one device `web` on the channel of that name;
/// its address is `url` followed by `/u<number>`.
///
/// # Errors
/// Errors of the writer.
pub fn write_subscribers(out: &mut impl Write, subscribers: u32, url: &str) -> io::Result<()> {
    for number in 0..subscribers {
        let address = serde_json::Value::from(format!("{}/u{number}", url.trim_end_matches('/')));
        writeln!(out, r#"{{"id":"u{number}","devices":{{"web":{{"channel":"web","address":{address}}}}}}}"#)?;
    }
    Ok(())
}

/// Writes orders as NDJSON for the import of subscriptions. Their key is their index, so that a second import changes
/// nothing.
///
/// # Errors
/// Errors of the writer.
pub fn write_subscriptions(out: &mut impl Write, orders: impl IntoIterator<Item = Order>) -> io::Result<()> {
    for Order { subscriber, place, symbol, kind, trigger } in orders {
        writeln!(
            out,
            r#"{{"application":"stock","class":"order","subscriber":"u{subscriber}","key":"o{place}","values":{{"symbol":"S{symbol:04}","kind":"{}","trigger":{trigger}}}}}"#,
            kind.name()
        )?;
    }
    Ok(())
}

/// Writes quotes as NDJSON for the events endpoint.
///
/// # Errors
/// Errors of the writer.
pub fn write_quotes(out: &mut impl Write, quotes: &[Quote]) -> io::Result<()> {
    for Quote { symbol, price, change, volume } in quotes {
        writeln!(out, r#"{{"symbol":"S{symbol:04}","price":{price},"change":{change},"volume":{volume}}}"#)?;
    }
    Ok(())
}

/// Random generator splitmix64: small, fast, portable. Streams of one seed are independent of each other.
struct SplitMix64(u64);

impl SplitMix64 {
    fn new(seed: u64, stream: u64) -> Self {
        SplitMix64(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in [0, 1).
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Normal distribution, mean 0, deviation 1 (Box-Muller).
    fn normal(&mut self) -> f64 {
        let (length, angle) = (1.0 - self.fraction(), self.fraction());
        (-2.0 * length.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// Exponential distribution, mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.fraction()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(write: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> Vec<serde_json::Value> {
        let mut out = Vec::new();
        write(&mut out).expect("writing to a vector succeeds");
        let text = String::from_utf8(out).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    #[test]
    fn a_seed_determines_the_market() {
        let (one, same, other) = (Market::new(SEED), Market::new(SEED), Market::new(SEED + 1));
        assert!(one.orders(100, 5).eq(same.orders(100, 5)));
        assert!(!one.orders(100, 5).eq(other.orders(100, 5)));
        assert_eq!(one.quotes(3), same.quotes(3));
        assert_ne!(one.quotes(3), one.quotes(4));
        // More subscribers do not change the existing ones.
        assert!(one.orders(200, 5).take(500).eq(one.orders(100, 5)));
    }

    #[test]
    fn a_batch_matches_about_four_percent() {
        let market = Market::new(SEED);
        let batches: Vec<Vec<Quote>> = (0..10).map(|number| market.quotes(number)).collect();
        let orders: Vec<Order> = market.orders(20_000, 5).collect();
        let matches: usize = batches
            .iter()
            .map(|batch| orders.iter().filter(|order| order.is_met_by(&batch[usize::from(order.symbol)])).count())
            .sum();
        let share = matches as f64 / (batches.len() * orders.len()) as f64;
        assert!((0.038..0.042).contains(&share), "{share}");
    }

    #[test]
    fn popular_symbols_have_most_orders_and_every_kind_occurs() {
        let market = Market::new(SEED);
        let mut by_symbol = vec![0_u32; SYMBOLS];
        let mut kinds = std::collections::HashMap::new();
        for order in market.orders(20_000, 5) {
            by_symbol[usize::from(order.symbol)] += 1;
            *kinds.entry(order.kind).or_insert(0_u32) += 1;
            assert!(order.trigger >= 0, "{order:?}");
        }
        let top: u32 = by_symbol[..100].iter().sum();
        assert!((50_000..60_000).contains(&top), "a tenth of the symbols has {top} of 100,000 orders");
        assert_eq!(kinds.len(), 4);
        assert!(kinds.values().all(|count| (24_000..26_000).contains(count)), "{kinds:?}");
    }

    #[test]
    fn the_lines_have_the_import_format() {
        let market = Market::new(SEED);
        let subscribers = lines(|out| write_subscribers(out, 2, "http://127.0.0.1:9000/hook/"));
        assert_eq!(subscribers[1]["id"], "u1");
        assert_eq!(subscribers[1]["devices"]["web"]["address"], "http://127.0.0.1:9000/hook/u1");
        let subscriptions = lines(|out| write_subscriptions(out, market.orders(2, 5)));
        assert_eq!(subscriptions.len(), 10);
        assert_eq!(subscriptions[9]["subscriber"], "u1");
        assert_eq!(subscriptions[9]["key"], "o4");
        assert!(subscriptions[9]["values"]["trigger"].is_i64());
        let quotes = lines(|out| write_quotes(out, &market.quotes(0)));
        assert_eq!(quotes.len(), SYMBOLS);
        assert_eq!(quotes[7]["symbol"], "S0007");
    }
}
