//! SMS: the alphabet of a text, its number of segments, and shortening (3GPP TS 23.038 and 23.040).

use unicode_segmentation::UnicodeSegmentation;

/// The encoding of a text as SMS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortMessage {
    /// Whether it uses the GSM 7-bit alphabet; otherwise UCS-2.
    pub is_gsm: bool,
    /// GSM septets, or UCS-2 code units.
    pub units: usize,
    /// The number of segments.
    pub segments: usize,
}

/// The characters of the basic GSM alphabet, one septet each.
const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
/// The characters of its extension, two septets each.
const EXTENDED: &str = "^{}\\[~]|€\u{c}";

/// Measures a text.
pub fn measure(text: &str) -> ShortMessage {
    let is_gsm = text.chars().all(|c| septets(c).is_some());
    let cost = |c: char| units(c, is_gsm);
    let units: usize = text.chars().map(cost).sum();
    let (single, part) = if is_gsm { (160, 153) } else { (70, 67) };
    if units <= single {
        return ShortMessage { is_gsm, units, segments: usize::from(units > 0) };
    }
    // A character is not divided between two segments.
    let (mut segments, mut room) = (1, part);
    for c in text.chars() {
        let cost = cost(c);
        if cost > room {
            segments += 1;
            room = part;
        }
        room -= cost;
    }
    ShortMessage { is_gsm, units, segments }
}

fn septets(c: char) -> Option<usize> {
    match c {
        ' '..='~' if !"^{}\\[~]|`".contains(c) => Some(1),
        c if EXTENDED.contains(c) => Some(2),
        c if BASIC.contains(c) => Some(1),
        _ => None,
    }
}

fn units(c: char, is_gsm: bool) -> usize {
    if is_gsm { septets(c).unwrap_or(1) } else { c.len_utf16() }
}

/// Cuts a text to fit into this many segments; a cut text ends in `...`.
pub fn shorten(text: &str, segments: usize) -> String {
    if measure(text).segments <= segments {
        return text.to_owned();
    }
    // The longest prefix that fits; shorter prefixes always fit.
    let ends: Vec<usize> = text.grapheme_indices(true).map(|(at, _)| at).take(segments * 160 + 1).collect();
    let fits = |end: usize| measure(&format!("{}...", text[..end].trim_end())).segments <= segments;
    let (mut fitting, mut beyond) = (0, ends.len());
    while fitting + 1 < beyond {
        let middle = (fitting + beyond) / 2;
        if fits(ends[middle]) { fitting = middle } else { beyond = middle }
    }
    format!("{}...", text[..ends[fitting]].trim_end())
}

/// Replaces characters outside the GSM alphabet by similar ones: quotes, dashes, spaces, letters without diacritics.
/// Others are kept, and make the text UCS-2.
pub fn to_gsm(text: &str) -> String {
    let (mut out, mut other) = (String::with_capacity(text.len()), [0; 4]);
    for c in text.chars() {
        if septets(c).is_some() {
            out.push(c);
            continue;
        }
        out.push_str(match c {
            '‘' | '’' | '‚' | '‛' | '′' | '`' | '´' => "'",
            '“' | '”' | '„' | '‟' | '″' | '«' | '»' => "\"",
            '‐' | '‑' | '‒' | '–' | '—' | '−' => "-",
            '…' => "...",
            '•' | '·' => "*",
            '\u{a0}' | '\u{2009}' | '\u{202f}' | '\u{2003}' | '\u{2002}' | '\t' => " ",
            '\u{200b}' | '\u{feff}' | '\u{ad}' => "",
            'á' | 'â' | 'ã' | 'ā' | 'ă' | 'ą' => "a",
            'Á' | 'À' | 'Â' | 'Ã' | 'Ā' | 'Ă' | 'Ą' => "A",
            'ç' | 'ć' | 'č' => "c",
            'Ć' | 'Č' => "C",
            'ď' => "d",
            'ê' | 'ë' | 'ē' | 'ė' | 'ę' | 'ě' => "e",
            'È' | 'Ê' | 'Ë' | 'Ē' | 'Ė' | 'Ę' | 'Ě' => "E",
            'ğ' => "g",
            'í' | 'î' | 'ï' | 'ī' | 'į' | 'ı' => "i",
            'Í' | 'Ì' | 'Î' | 'Ï' | 'İ' => "I",
            'ł' | 'ľ' => "l",
            'Ł' => "L",
            'ń' | 'ň' => "n",
            'ó' | 'ô' | 'õ' | 'ō' | 'ő' => "o",
            'Ó' | 'Ò' | 'Ô' | 'Õ' | 'Ő' => "O",
            'œ' => "oe",
            'Œ' => "OE",
            'ř' => "r",
            'ś' | 'š' | 'ş' | 'ș' => "s",
            'Ś' | 'Š' | 'Ş' | 'Ș' => "S",
            'ť' | 'ț' | 'ţ' => "t",
            'ú' | 'û' | 'ū' | 'ů' | 'ű' => "u",
            'Ú' | 'Ù' | 'Û' | 'Ů' | 'Ű' => "U",
            'ý' | 'ÿ' => "y",
            'ź' | 'ż' | 'ž' => "z",
            'Ź' | 'Ż' | 'Ž' => "Z",
            c => c.encode_utf8(&mut other),
        });
    }
    out
}

/// Removes control characters except line ends.
pub fn clean(text: &str) -> String {
    let text = text.trim();
    if !text.contains(|c: char| c.is_control() && c != '\n') {
        return text.to_owned();
    }
    let kept = text.chars().filter(|c| *c != '\r').map(|c| if c.is_control() && c != '\n' { ' ' } else { c });
    kept.collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted() {
        let found = |text: &str| {
            let measured = measure(text);
            (measured.is_gsm, measured.units, measured.segments)
        };
        assert_eq!(found(""), (true, 0, 0));
        assert_eq!(found("Straße, £5, ñ, [€]"), (true, 21, 1));
        assert_eq!(found(&"a".repeat(160)), (true, 160, 1));
        assert_eq!(found(&"a".repeat(161)), (true, 161, 2));
        assert_eq!(found(&"a".repeat(306)), (true, 306, 2));
        assert_eq!(found(&"a".repeat(307)), (true, 307, 3));
        assert_eq!(found("ž"), (false, 1, 1));
        assert_eq!(found("`"), (false, 1, 1));
        assert_eq!(found(&"ж".repeat(70)), (false, 70, 1));
        assert_eq!(found(&"ж".repeat(71)), (false, 71, 2));
        assert_eq!(found("😀"), (false, 2, 1));
        // 153 is odd, so each of the first segments has an unused septet.
        assert_eq!(found(&"€".repeat(153)), (true, 306, 3));
        assert_eq!(found(&"😀".repeat(67)), (false, 134, 3));
    }

    #[test]
    fn texts_are_shortened() {
        for (text, segments) in [("a ", 1), ("€", 2), ("ж", 1), ("😀", 2), ("ab ж", 3)] {
            let long = text.repeat(400);
            let short = shorten(&long, segments);
            assert!(short.ends_with("..."), "{short}");
            assert_eq!(measure(&short).segments, segments, "{short}");
            assert!(long.starts_with(short.trim_end_matches('.').trim_end()), "{short}");
        }
        assert_eq!(shorten("short", 1), "short");
        assert_eq!(to_gsm("„Łódź – it’s…“ 日"), "\"Lódz - it's...\" 日".replace('ó', "o"));
        assert_eq!(clean(" a\tb\r\nc\u{7}\n"), "a b\nc");
    }
}
