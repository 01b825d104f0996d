//! Generated people around the world: from real cities weighted by population, each with one subscription.

/// City, latitude, longitude, time zone, millions of people, speaks German.
type City = (&'static str, f64, f64, &'static str, f64, bool);

#[rustfmt::skip]
const CITIES: [City; 62] = [
    ("Tokyo", 35.68, 139.69, "Asia/Tokyo", 37.0, false), ("Osaka", 34.69, 135.50, "Asia/Tokyo", 19.0, false),
    ("Sendai", 38.27, 140.87, "Asia/Tokyo", 2.3, false), ("Sapporo", 43.06, 141.35, "Asia/Tokyo", 2.7, false),
    ("Taipei", 25.03, 121.57, "Asia/Taipei", 7.0, false), ("Hualien", 23.99, 121.60, "Asia/Taipei", 0.3, false),
    ("Manila", 14.60, 120.98, "Asia/Manila", 13.9, false), ("Jakarta", -6.21, 106.85, "Asia/Jakarta", 10.8, false),
    ("Surabaya", -7.26, 112.75, "Asia/Jakarta", 2.9, false), ("Kathmandu", 27.72, 85.32, "Asia/Kathmandu", 1.5, false),
    ("Delhi", 28.61, 77.21, "Asia/Kolkata", 31.0, false), ("Mumbai", 19.08, 72.88, "Asia/Kolkata", 20.7, false),
    ("Dhaka", 23.81, 90.41, "Asia/Dhaka", 21.7, false), ("Karachi", 24.86, 67.01, "Asia/Karachi", 16.5, false),
    ("Islamabad", 33.68, 73.05, "Asia/Karachi", 1.2, false), ("Kabul", 34.56, 69.21, "Asia/Kabul", 4.3, false),
    ("Tehran", 35.69, 51.39, "Asia/Tehran", 9.2, false), ("Istanbul", 41.01, 28.98, "Europe/Istanbul", 15.4, false),
    ("Izmir", 38.42, 27.14, "Europe/Istanbul", 3.0, false), ("Athens", 37.98, 23.73, "Europe/Athens", 3.2, false),
    ("Rome", 41.90, 12.50, "Europe/Rome", 4.3, false), ("Naples", 40.85, 14.27, "Europe/Rome", 2.2, false),
    ("Lisbon", 38.72, -9.14, "Europe/Lisbon", 3.0, false), ("London", 51.51, -0.13, "Europe/London", 9.4, false),
    ("Reykjavik", 64.15, -21.94, "Atlantic/Reykjavik", 0.2, false), ("Berlin", 52.52, 13.41, "Europe/Berlin", 3.7, true),
    ("Hamburg", 53.55, 9.99, "Europe/Berlin", 1.9, true), ("Munich", 48.14, 11.58, "Europe/Berlin", 1.6, true),
    ("Cologne", 50.94, 6.96, "Europe/Berlin", 1.1, true), ("Vienna", 48.21, 16.37, "Europe/Vienna", 2.0, true),
    ("Graz", 47.07, 15.44, "Europe/Vienna", 0.3, true), ("Innsbruck", 47.27, 11.39, "Europe/Vienna", 0.2, true),
    ("Zurich", 47.38, 8.54, "Europe/Zurich", 1.4, true), ("Los Angeles", 34.05, -118.24, "America/Los_Angeles", 12.5, false),
    ("San Francisco", 37.77, -122.42, "America/Los_Angeles", 4.7, false), ("Seattle", 47.61, -122.33, "America/Los_Angeles", 4.0, false),
    ("Anchorage", 61.22, -149.90, "America/Anchorage", 0.4, false), ("Fairbanks", 64.84, -147.72, "America/Anchorage", 0.1, false),
    ("Honolulu", 21.31, -157.86, "Pacific/Honolulu", 1.0, false), ("Las Vegas", 36.17, -115.14, "America/Los_Angeles", 2.3, false),
    ("Salt Lake City", 40.76, -111.89, "America/Denver", 1.2, false), ("Oklahoma City", 35.47, -97.52, "America/Chicago", 1.4, false),
    ("New York", 40.71, -74.01, "America/New_York", 18.8, false), ("Mexico City", 19.43, -99.13, "America/Mexico_City", 21.9, false),
    ("Oaxaca", 17.07, -96.73, "America/Mexico_City", 0.7, false), ("Guatemala City", 14.63, -90.51, "America/Guatemala", 3.0, false),
    ("San Juan", 18.47, -66.11, "America/Puerto_Rico", 2.4, false), ("Caracas", 10.48, -66.90, "America/Caracas", 2.9, false),
    ("Bogota", 4.71, -74.07, "America/Bogota", 11.2, false), ("Quito", -0.18, -78.47, "America/Guayaquil", 1.9, false),
    ("Lima", -12.05, -77.04, "America/Lima", 10.9, false), ("Santiago", -33.45, -70.67, "America/Santiago", 6.9, false),
    ("Valparaiso", -33.05, -71.61, "America/Santiago", 1.0, false), ("Buenos Aires", -34.60, -58.38, "America/Argentina/Buenos_Aires", 15.3, false),
    ("Wellington", -41.29, 174.78, "Pacific/Auckland", 0.4, false), ("Christchurch", -43.53, 172.64, "Pacific/Auckland", 0.4, false),
    ("Port Moresby", -9.44, 147.18, "Pacific/Port_Moresby", 0.4, false), ("Suva", -18.14, 178.44, "Pacific/Fiji", 0.2, false),
    ("Noumea", -22.27, 166.46, "Pacific/Noumea", 0.2, false), ("Shanghai", 31.23, 121.47, "Asia/Shanghai", 27.8, false),
    ("Chengdu", 30.57, 104.07, "Asia/Shanghai", 9.3, false), ("Cairo", 30.04, 31.24, "Africa/Cairo", 21.3, false),
];

const DISTANCES_KM: [f64; 7] = [100.0, 200.0, 300.0, 500.0, 1_000.0, 2_000.0, 5_000.0];
const MAGNITUDES: [f64; 8] = [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0];

/// Person with one subscription.
#[derive(Debug, Clone, PartialEq)]
pub struct Person {
    /// Id, such as `osaka-00042`.
    pub id: String,
    /// City.
    pub city: &'static str,
    /// Locale, `en` or `de`.
    pub locale: &'static str,
    /// IANA time zone.
    pub time_zone: &'static str,
    /// Latitude of the home in degrees.
    pub latitude: f64,
    /// Longitude of the home in degrees.
    pub longitude: f64,
    /// Maximum distance.
    pub distance_km: f64,
    /// Minimum magnitude.
    pub magnitude_min: f64,
}

impl Person {
    /// Mail address.
    pub fn address(&self) -> String {
        format!("{}@people.example", self.id)
    }
}

/// Generates people, deterministic by seed.
pub fn people(count: u32, seed: u64) -> Vec<Person> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let all: f64 = CITIES.iter().map(|city| city.4).sum();
    (0..count)
        .map(|number| {
            let mut ticket = chance.f64() * all;
            let city = CITIES.iter().find(|city| {
                ticket -= city.4;
                ticket < 0.0
            });
            let &(name, latitude, longitude, time_zone, _, german) = city.unwrap_or(&CITIES[0]);
            // Within about twenty kilometres of the centre, rounded to ten metres.
            let nearby =
                |centre: f64, chance: &mut fastrand::Rng| ((centre + (chance.f64() - 0.5) * 0.4) * 1e4).round() / 1e4;
            Person {
                id: format!("{}-{number:05}", name.to_lowercase().replace(' ', "-")),
                city: name,
                locale: if german || chance.u8(..) < 10 { "de" } else { "en" },
                time_zone,
                latitude: nearby(latitude, &mut chance),
                longitude: nearby(longitude, &mut chance),
                distance_km: DISTANCES_KM[chance.usize(..DISTANCES_KM.len())],
                magnitude_min: MAGNITUDES[chance.usize(..MAGNITUDES.len())],
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_generates_the_same_people() {
        let crowd = people(1_000, 7);
        assert_eq!(crowd, people(1_000, 7));
        assert_ne!(crowd, people(1_000, 8));
        assert_eq!(crowd[..10], people(10, 7)[..]);
        let ids: std::collections::BTreeSet<&str> = crowd.iter().map(|person| person.id.as_str()).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(crowd.iter().any(|person| person.locale == "de") && crowd.iter().any(|person| person.locale == "en"));
        assert!(crowd.iter().all(|person| person.latitude.abs() < 90.0 && person.longitude.abs() <= 180.0));
        assert!(crowd.iter().all(|person| jiff::tz::TimeZone::get(person.time_zone).is_ok()));
    }
}
