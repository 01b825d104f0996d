//! Who should have been told: every event against every person, computed without Tocsin's rules.

use super::world::Person;

/// An earthquake, as far as the wishes look at it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quake {
    /// Unknown for some.
    pub magnitude: Option<f64>,
    /// In degrees.
    pub latitude: f64,
    /// In degrees.
    pub longitude: f64,
}

/// How many mails each person should get, in the order of the people.
pub fn expected_mails(people: &[Person], quakes: &[Quake]) -> Vec<u64> {
    let vectors: Vec<[f64; 3]> = quakes.iter().map(|quake| unit(quake.latitude, quake.longitude)).collect();
    let wants = |person: &Person| {
        let home = unit(person.latitude, person.longitude);
        let near = quakes.iter().zip(&vectors).filter(|(quake, place)| {
            quake.magnitude.is_some_and(|magnitude| magnitude >= person.magnitude_min)
                && arc_km(&home, place) <= person.distance_km
        });
        near.count() as u64
    };
    people.iter().map(wants).collect()
}

/// The place as a vector from the earth's centre. Vectors, because the rule language uses the haversine formula: two ways
/// to the same distance do not share their mistakes.
fn unit(latitude: f64, longitude: f64) -> [f64; 3] {
    let (latitude, longitude) = (latitude.to_radians(), longitude.to_radians());
    [latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()]
}

/// The angle between two places, from the sine and the cosine, which is exact for near and far ones alike; times the
/// mean radius of the earth.
fn arc_km(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    let cross = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
    let sine = cross.iter().map(|part| part * part).sum::<f64>().sqrt();
    let cosine: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
    sine.atan2(cosine) * 6371.0088
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_globe() {
        let between = |a: (f64, f64), b: (f64, f64)| arc_km(&unit(a.0, a.1), &unit(b.0, b.1)).round();
        assert_eq!(between((52.52, 13.41), (48.14, 11.58)), 504.0);
        assert_eq!(between((0.0, 179.5), (0.0, -179.5)), 111.0);
        assert_eq!(between((90.0, 0.0), (-90.0, 77.0)), 20_015.0);
        assert_eq!(between((35.0, 139.0), (35.0, 139.0)), 0.0);
    }

    #[test]
    fn both_conditions_count_and_an_unknown_magnitude_is_none() {
        let person = Person {
            distance_km: 600.0,
            magnitude_min: 4.0,
            latitude: 52.52,
            longitude: 13.41,
            ..super::super::world::people(1, 1)[0].clone()
        };
        let quake = |magnitude, latitude| Quake { magnitude, latitude, longitude: 11.58 };
        let quakes = [quake(Some(4.0), 48.14), quake(Some(3.9), 48.14), quake(None, 48.14), quake(Some(9.0), 38.0)];
        assert_eq!(expected_mails(&[person], &quakes), [1]);
    }
}
